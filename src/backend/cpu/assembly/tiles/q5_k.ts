// Q5_K: as Q4_K, with 32 bytes between the scales and the nibbles whose bit b is the fifth bit of block b.

import { decodeScales } from './q4_k';
import { high4, low4, TILE } from './tile';

export const BYTES: usize = 704;

export function decode(group: usize, tile: usize): void {
  decodeScales(group, tile);
  const fifths = group + 64;
  for (let pair = 0; pair < 4; pair++) {
    const packed = group + 192 + (<usize>pair << 7);
    const low = tile + <usize>pair * (2 * TILE);
    for (let i: usize = 0; i < 128; i += 16) {
      const nibbles = v128.load(packed + i);
      const bits = i8x16.shr_u(v128.load(fifths + i), pair << 1);
      const one = i8x16.splat(1);
      v128.store(low + i, v128.or(low4(nibbles), i8x16.shl(v128.and(bits, one), 4)));
      v128.store(low + i, v128.or(high4(nibbles), i8x16.shl(v128.and(i8x16.shr_u(bits, 1), one), 4)), TILE);
    }
  }
}
