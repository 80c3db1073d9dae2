/** Layers that see only a window of positions, as GGUF tells it: which they are, and how they rotate. */

import type { FamilyReader } from '../family-reader.ts';
import type { ReachSpec, RopeSpec } from '../spec.ts';
import type { Heads } from './common.ts';

/** What a family knows about its windows. */
export interface WindowFacts {
  /** One layer of so many sees everything, where the file does not say otherwise. */
  readonly period: number;
  /** Which one of them it is. */
  readonly whole: 'first' | 'last';
}

/**
 * The reach of each layer, undefined for those that see everything. The file gives the window and may give a pattern: a
 * flag for each layer that is true for a window, or in words as `config.json` has it, or a period.
 * @throws CorruptFileError `corrupt_file`
 */
export function readWindows(
  reader: FamilyReader,
  layers: number,
  facts: WindowFacts,
): readonly (ReachSpec | undefined)[] {
  const length = reader.count('attention.sliding_window', { min: 1, max: 2 ** 31 - 1 });
  return readPattern(reader, layers, facts).map((windowed) => (windowed ? { kind: 'window', length } : undefined));
}

function readPattern(reader: FamilyReader, layers: number, { period, whole }: WindowFacts): readonly boolean[] {
  const key = 'attention.sliding_window_pattern';
  if (reader.isArray(key)) return reader.flags(key, layers, { sliding_attention: true, full_attention: false });
  const every = reader.count(key, { min: 1, max: 2 ** 31 - 1, default: period });
  const at = whole === 'first' ? 0 : every - 1;
  return Array.from({ length: layers }, (_, layer) => layer % every !== at);
}

/**
 * The rotation of layers with a window: pairs of two halves, a base of its own, never scaled.
 * @param base what an absent `rope.freq_base_swa` means; without it the key must be there
 * @throws CorruptFileError `corrupt_file`
 */
export function readWindowRope(reader: FamilyReader, { headDim }: Heads, base?: number): RopeSpec {
  const dimensions = reader.count('rope.dimension_count_swa', { min: 1, max: headDim, default: headDim });
  if (dimensions % 2 !== 0) {
    throw reader.corruptKey('rope.dimension_count_swa', String(dimensions), 'an even number');
  }
  const found = reader.positiveFloat('rope.freq_base_swa', { default: base });
  if (found <= 1) throw reader.corruptKey('rope.freq_base_swa', String(found), 'a number above 1');
  return { pairing: 'half', dimensions, base: found, scaling: { kind: 'none' } };
}
