/** The table of weight formats: one file and one line each. */

import { Refusal } from '../errors.ts';
import { bf16 } from './bf16.ts';
import { f16 } from './f16.ts';
import { f32 } from './f32.ts';
import type { QuantFormat } from './format.ts';
import { fp8_32 } from './fp8_32.ts';
import { fp8_128 } from './fp8_128.ts';
import { iq4_nl } from './iq4_nl.ts';
import { iq4_xs } from './iq4_xs.ts';
import { mxfp4 } from './mxfp4.ts';
import { nvfp4 } from './nvfp4.ts';
import { nvfp4_32 } from './nvfp4_32.ts';
import { q2_k } from './q2_k.ts';
import { q3_k } from './q3_k.ts';
import { q4_0 } from './q4_0.ts';
import { q4_1 } from './q4_1.ts';
import { q4_k } from './q4_k.ts';
import { q5_0 } from './q5_0.ts';
import { q5_1 } from './q5_1.ts';
import { q5_k } from './q5_k.ts';
import { q6_k } from './q6_k.ts';
import { q8_0 } from './q8_0.ts';

export type { QuantFormat } from './format.ts';

/** A format's name, as `QuantFormat.id` spells it. */
export type FormatId = string;

/** In the order of GGUF's type numbers, then those that only safetensors have. */
export const formats: readonly QuantFormat[] = [
  f32,
  f16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  bf16,
  mxfp4,
  nvfp4,
  nvfp4_32,
  fp8_32,
  fp8_128,
];

const byId = new Map(formats.map((format) => [format.id, format]));

/** @throws Refusal `refused` for a format that is not in the table, with the names that are. */
export function formatOf(id: FormatId): QuantFormat {
  const format = byId.get(id);
  if (format === undefined) {
    throw new Refusal(`weight format ${id} is not supported; supported are ${formats.map((f) => f.id).join(', ')}`);
  }
  return format;
}

/** Bytes of `values` values in a format; `values` must be whole blocks. */
export function formatBytes(id: FormatId, values: number): number {
  const format = formatOf(id);
  return (values / format.blockLength) * format.blockBytes;
}

/** true, or why kernels that read the `known` formats cannot take a [rows, columns] weight of this one. */
export function acceptsBlocks(
  known: readonly FormatId[],
  weight: { readonly name: string; readonly format: FormatId; readonly columns: number },
): true | string {
  const { name, format, columns } = weight;
  if (!known.includes(format)) return `${name}: needs one of ${known.join(', ')}, found ${format}`;
  const { blockLength } = formatOf(format);
  if (columns % blockLength !== 0) {
    return `${name}: needs columns in multiples of ${blockLength} for ${format}, found ${columns}`;
  }
  return true;
}
