// IQ4_NL: d (f16), 16 bytes as in Q4_0 that index sixteen signed levels; weight = d · level. The tile's bytes are signed.

import { loadF16 } from '../lanes';
import { high4, low4, SCALE } from './tile';

export const BYTES: usize = 72;

// @ts-ignore: decorator
@inline
export function levels(index: v128): v128 {
  return i8x16.swizzle(i8x16(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), index);
}

/** The 32 columns of `packed` (64 bytes) as levels. */
export function decodeLevels(packed: usize, tile: usize): void {
  for (let i: usize = 0; i < 64; i += 16) {
    const nibbles = v128.load(packed + i);
    v128.store(tile + i, levels(low4(nibbles)));
    v128.store(tile + i, levels(high4(nibbles)), 64);
  }
}

export function decode(group: usize, tile: usize): void {
  decodeLevels(group + 8, tile);
  v128.store(tile, loadF16(group), SCALE);
}
