/** The table of weight formats: one file and one line each. */

import { Refusal } from '../errors.ts';
import type { QuantFormat } from './format.ts';

export type { QuantFormat } from './format.ts';

/** A format's name, as `QuantFormat.id` spells it. */
export type FormatId = string;

export const formats: readonly QuantFormat[] = [];

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
