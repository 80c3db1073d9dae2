// MXFP4 (OCP Microscaling v1.0): an E8M0 exponent, 16 bytes of E2M1 as in Q4_0. The tile holds twice the value plus 12, so
// that it is never negative; weight = 2^(e-128) · (q - 12). Exponent 0 means 2^-127, 255 means NaN.

import { high4, low4, OFFSET, SCALE } from './tile';

export const BYTES: usize = 68;

/** By the code, twice an E2M1 value, plus {@link E2M1_ZERO}. */
// @ts-ignore: decorator
@inline
export function e2m1Values(): v128 {
  return i8x16(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}
export const E2M1_ZERO: i16 = 12;

// @ts-ignore: decorator
@inline
export function e2m1(index: v128): v128 {
  return i8x16.swizzle(e2m1Values(), index);
}

/** Half of 2^(e-127): e-1 in the exponent field, or a subnormal for e < 2. */
// @ts-ignore: decorator
@inline
function halfE8m0(exponent: v128): v128 {
  const normal = i32x4.shl(i32x4.sub(exponent, i32x4.splat(1)), 23);
  const tiny = i32x4.splat(0x00200000);
  const subnormal = i32x4.add(tiny, v128.and(i32x4.eq(exponent, i32x4.splat(1)), tiny));
  const value = v128.bitselect(subnormal, normal, i32x4.lt_s(exponent, i32x4.splat(2)));
  return v128.or(value, v128.and(i32x4.eq(exponent, i32x4.splat(255)), i32x4.splat(0x7fc00000)));
}

/** Half of each row's scale. */
// @ts-ignore: decorator
@inline
export function scaleOf(group: usize): v128 {
  return halfE8m0(i32x4.extend_low_i16x8_u(i16x8.extend_low_i8x16_u(v128.load32_zero(group))));
}

export function decode(group: usize, tile: usize): void {
  for (let i: usize = 0; i < 64; i += 16) {
    const nibbles = v128.load(group + i, 4);
    v128.store(tile + i, e2m1(low4(nibbles)));
    v128.store(tile + i, e2m1(high4(nibbles)), 64);
  }
  const scale = scaleOf(group);
  v128.store(tile, scale, SCALE);
  v128.store(tile, f32x4.mul(scale, f32x4.splat(-12)), OFFSET);
}
