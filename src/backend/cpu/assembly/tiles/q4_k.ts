// Q4_K: d, dmin (f16), eight 6-bit scales and minimums in 12 bytes, 128 bytes; bytes 32j…32j+31 hold columns 64j…64j+31 in
// their low nibbles and the next 32 in their high ones; weight = d · scale · q - dmin · minimum.

import { loadF16 } from '../lanes';
import { byteOfLane, high4, low4, OFFSET, SCALE, TILE } from './tile';

export const BYTES: usize = 576;

/**
 * Scales and minimums of blocks 0…3 and 4…7, a byte each, a row a lane. Q5_K packs them the same way. `six`, `four` and `top`
 * are bytes of 63, 15 and 48.
 */
// @ts-ignore: decorator
@inline
export function scalesLow(group: usize, six: v128): v128 {
  return v128.and(v128.load(group, 16), six);
}
// @ts-ignore: decorator
@inline
export function minimumsLow(group: usize, six: v128): v128 {
  return v128.and(v128.load(group, 32), six);
}
// @ts-ignore: decorator
@inline
export function scalesHigh(group: usize, four: v128, top: v128): v128 {
  return v128.or(v128.and(v128.load(group, 48), four), v128.and(i32x4.shr_u(v128.load(group, 16), 2), top));
}
// @ts-ignore: decorator
@inline
export function minimumsHigh(group: usize, four: v128, top: v128): v128 {
  const low = v128.and(i32x4.shr_u(v128.load(group, 48), 4), four);
  return v128.or(low, v128.and(i32x4.shr_u(v128.load(group, 32), 2), top));
}

/** Scale and offset of all eight blocks. */
export function decodeScales(group: usize, tile: usize): void {
  const d = loadF16(group);
  const least = f32x4.neg(loadF16(group, 8));
  const four = i8x16.splat(15);
  const top = i8x16.splat(48);
  let scales = scalesLow(group, v128.or(four, top));
  let minimums = minimumsLow(group, v128.or(four, top));
  for (let block = 0; block < 8; block++) {
    if (block == 4) {
      scales = scalesHigh(group, four, top);
      minimums = minimumsHigh(group, four, top);
    }
    v128.store(tile, f32x4.mul(d, f32x4.convert_i32x4_s(byteOfLane(scales, block & 3))), SCALE);
    v128.store(tile, f32x4.mul(least, f32x4.convert_i32x4_s(byteOfLane(minimums, block & 3))), OFFSET);
    tile += TILE;
  }
}

export function decode(group: usize, tile: usize): void {
  decodeScales(group, tile);
  for (let pair: usize = 0; pair < 4; pair++) {
    const packed = group + 64 + (pair << 7);
    const low = tile + pair * (2 * TILE);
    for (let i: usize = 0; i < 128; i += 16) {
      const nibbles = v128.load(packed + i);
      v128.store(low + i, low4(nibbles));
      v128.store(low + i, high4(nibbles), TILE);
    }
  }
}
