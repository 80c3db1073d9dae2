// Q6_K: 128 bytes of low nibbles, 64 bytes of high bit pairs, sixteen signed scales, d (f16); each half of 128 columns takes
// 64 and 32 of those bytes; weight = d · scale · (q - 32), a scale for 16 columns.

import { loadF16 } from '../lanes';
import { high4, low4, SCALE, SCALE_SECOND, TILE, ZERO } from './tile';

export const BYTES: usize = 840;

/** Scales 4·word … 4·word+3 of the sixteen, of which `index` is wanted, times d: f32. */
// @ts-ignore: decorator
@inline
function scaleOf(word: v128, index: i32, d: v128): v128 {
  // Shift the byte to the top of its lane and back, to keep its sign.
  return f32x4.mul(d, f32x4.convert_i32x4_s(i32x4.shr_s(i32x4.shl(word, 24 - (index << 3)), 24)));
}

export function decode(group: usize, tile: usize): void {
  const d = loadF16(group, 832);
  for (let half: usize = 0; half < 2; half++) {
    const nibbles = group + (half << 8);
    const pairs = group + 512 + (half << 7);
    const first = tile + half * (4 * TILE);
    for (let i: usize = 0; i < 128; i += 16) {
      const a = v128.load(nibbles + i);
      const b = v128.load(nibbles + i, 128);
      const bits = v128.load(pairs + i);
      const two = i8x16.splat(0x30);
      v128.store(first + i, v128.or(low4(a), v128.and(i8x16.shl(bits, 4), two)));
      v128.store(first + i, v128.or(low4(b), v128.and(i8x16.shl(bits, 2), two)), TILE);
      v128.store(first + i, v128.or(high4(a), v128.and(bits, two)), 2 * TILE);
      v128.store(first + i, v128.or(high4(b), v128.and(i8x16.shr_u(bits, 2), two)), 3 * TILE);
    }
    for (let block = 0; block < 4; block++) {
      const word = v128.load(group + 768 + (half << 5) + (<usize>(block >> 1) << 4));
      const at = first + <usize>block * TILE;
      v128.store(at, scaleOf(word, (block & 1) << 1, d), SCALE);
      v128.store(at, scaleOf(word, ((block & 1) << 1) + 1, d), SCALE_SECOND);
      v128.store(at, i16x8.splat(32), ZERO);
    }
  }
}
