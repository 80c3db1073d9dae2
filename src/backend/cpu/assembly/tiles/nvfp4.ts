// NVFP4: four UE4M3 scales, 32 bytes of E2M1; each 8 bytes hold 16 columns, the first 8 in the low nibbles. The tile holds
// twice the value plus 12; weight = scale/2 · (q - 12). The scale's sign bit means nothing; 0x7f is NaN.

import { E2M1_ZERO, e2m1 } from './mxfp4';
import { byteOfLane, high4, low4, SCALE, SCALE_SECOND, TILE, ZERO } from './tile';

export const BYTES: usize = 144;

/** Half of a UE4M3 scale. */
// @ts-ignore: decorator
@inline
export function halfScale(byte: v128): v128 {
  const magnitude = v128.and(byte, i32x4.splat(0x7f));
  // As an f32 exponent and mantissa it is 2^-120 too small; subnormals come right by the multiplication.
  const value = f32x4.mul(i32x4.shl(magnitude, 20), f32x4.splat(reinterpret<f32>(0x7b000000))); // 2^119: halved too
  return v128.or(value, v128.and(i32x4.eq(magnitude, i32x4.splat(0x7f)), i32x4.splat(0x7fc00000)));
}

export function decode(group: usize, tile: usize): void {
  const scales = v128.load(group);
  for (let block = 0; block < 2; block++) {
    for (let half: usize = 0; half < 2; half++) {
      const from = group + 16 + (<usize>block << 6) + (half << 5);
      const to = tile + (half << 6);
      for (let i: usize = 0; i < 32; i += 16) {
        const nibbles = v128.load(from + i);
        v128.store(to + i, e2m1(low4(nibbles)));
        v128.store(to + i, e2m1(high4(nibbles)), 32);
      }
    }
    v128.store(tile, halfScale(byteOfLane(scales, block << 1)), SCALE);
    v128.store(tile, halfScale(byteOfLane(scales, (block << 1) + 1)), SCALE_SECOND);
    v128.store(tile, i16x8.splat(E2M1_ZERO), ZERO);
    tile += TILE;
  }
}
