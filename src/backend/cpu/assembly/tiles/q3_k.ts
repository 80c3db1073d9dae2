// Q3_K: 32 bytes of third bits, 64 bytes of 2-bit values, sixteen 6-bit scales in 12 bytes, d (f16);
// weight = d · (scale - 32) · (q - 4), a scale for 16 columns.

import { loadF16 } from '../lanes';
import { byteOfLane, SCALE, SCALE_SECOND, TILE, ZERO } from './tile';

export const BYTES: usize = 440;

export function decode(group: usize, tile: usize): void {
  const d = loadF16(group, 432);
  const packed0 = v128.load(group, 384);
  const packed1 = v128.load(group, 400);
  const top = v128.load(group, 416);
  for (let block = 0; block < 8; block++) {
    const values = group + 128 + (<usize>(block >> 2) << 7);
    const shift = (block & 3) << 1;
    for (let i: usize = 0; i < 128; i += 16) {
      const low = v128.and(i8x16.shr_u(v128.load(values + i), shift), i8x16.splat(3));
      const third = v128.and(i8x16.shr_u(v128.load(group + i), block), i8x16.splat(1));
      v128.store(tile + i, v128.or(low, i8x16.shl(third, 2)));
    }
    // Scale s (0…15): low four bits in nibble s>>3 of byte s&7, high two in bits 2·(s>>2) of byte s&3 of `top`.
    const word = block & 2 ? packed1 : packed0;
    const nibbles = block < 4 ? v128.and(word, i32x4.splat(0x0f0f0f0f)) : v128.and(i32x4.shr_u(word, 4), i32x4.splat(0x0f0f0f0f));
    const bits = v128.and(i32x4.shr_u(top, (block >> 1) << 1), i32x4.splat(0x03030303));
    const scales = v128.or(nibbles, i32x4.shl(bits, 4));
    v128.store(tile, scaleOf(d, byteOfLane(scales, (block & 1) << 1)), SCALE);
    v128.store(tile, scaleOf(d, byteOfLane(scales, ((block & 1) << 1) + 1)), SCALE_SECOND);
    v128.store(tile, i16x8.splat(4), ZERO);
    tile += TILE;
  }
}

// @ts-ignore: decorator
@inline
function scaleOf(d: v128, scale: v128): v128 {
  return f32x4.mul(d, f32x4.convert_i32x4_s(i32x4.sub(scale, i32x4.splat(32))));
}
