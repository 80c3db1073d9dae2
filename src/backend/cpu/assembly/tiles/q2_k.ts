// Q2_K: 16 bytes (low nibble scale, high nibble minimum, one a 16 columns), 64 bytes of 2-bit values, d, dmin (f16);
// weight = d · scale · q - dmin · minimum.

import { loadF16 } from '../lanes';
import { byteOfLane, OFFSET, OFFSET_SECOND, SCALE, SCALE_SECOND, TILE } from './tile';

export const BYTES: usize = 336;

export function decode(group: usize, tile: usize): void {
  const d = loadF16(group, 320);
  const least = f32x4.neg(loadF16(group, 328));
  for (let block = 0; block < 8; block++) {
    const values = group + 64 + (<usize>(block >> 2) << 7);
    const shift = (block & 3) << 1;
    for (let i: usize = 0; i < 128; i += 16) {
      v128.store(tile + i, v128.and(i8x16.shr_u(v128.load(values + i), shift), i8x16.splat(3)));
    }
    const packed = v128.load(group + (<usize>(block >> 1) << 4));
    const first = byteOfLane(packed, (block & 1) << 1);
    const second = byteOfLane(packed, ((block & 1) << 1) + 1);
    v128.store(tile, f32x4.mul(d, f32x4.convert_i32x4_s(v128.and(first, i32x4.splat(15)))), SCALE);
    v128.store(tile, f32x4.mul(least, f32x4.convert_i32x4_s(i32x4.shr_u(first, 4))), OFFSET);
    v128.store(tile, f32x4.mul(d, f32x4.convert_i32x4_s(v128.and(second, i32x4.splat(15)))), SCALE_SECOND);
    v128.store(tile, f32x4.mul(least, f32x4.convert_i32x4_s(i32x4.shr_u(second, 4))), OFFSET_SECOND);
    tile += TILE;
  }
}
