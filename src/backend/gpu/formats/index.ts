/** The table of weight formats on the GPU: one file and one line each. */

import { acceptsBlocks, type FormatId } from '../../../quant/index.ts';
import type { GpuFormat } from '../formats.ts';
import { bf16 } from './bf16.ts';
import { f16 } from './f16.ts';
import { f32 } from './f32.ts';
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

export const gpuFormats: readonly GpuFormat[] = [
  f32,
  f16,
  bf16,
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
  mxfp4,
  nvfp4,
  nvfp4_32,
  fp8_32,
  fp8_128,
];

const byId = new Map(gpuFormats.map((format) => [format.id, format]));

/** Undefined for a format that no GPU kernel reads. */
export function gpuFormat(id: FormatId): GpuFormat | undefined {
  return byId.get(id);
}

const known = gpuFormats.map(({ id }) => id);

/** true, or why the GPU's kernels cannot take a [rows, columns] weight of this format. */
export function acceptsWeight(name: string, format: FormatId, columns: number): true | string {
  return acceptsBlocks(known, { name, format, columns });
}
