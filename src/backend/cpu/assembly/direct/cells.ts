// What the direct kernels share. They take weights from memory to the products through registers, for up to four cells at once,
// a cell being a group of four weight rows times one row of activations: what is decoded once serves every row. Whole numbers
// are summed up exactly, and a cell's f32 operations are the same in the same order whatever cells are beside it.

import { dotPairs, dotSum, FACTOR, widen } from '../lanes';

/** How many rows of activations a kernel takes, by its type parameter: u8 one, u16 two, u32 three, u64 four. */
// @ts-ignore: decorator
@inline
export function rowsOf<Rows>(): i32 {
  return sizeof<Rows>() == 8 ? 4 : sizeof<Rows>() == 4 ? 3 : sizeof<Rows>();
}

/**
 * Σ q·x of 8 columns, bytes of four rows in `w0` and `w1`: two i16 a row; in the build `DOT_SUM` one i32. So are dots below,
 * and scales as they are multiplied: two i16 a row, or one f32. Products of both are whole numbers below 2^24, which f32 holds.
 */
// @ts-ignore: decorator
@inline
export function sum8(x: usize, w0: v128, w1: v128): v128 {
  if (DOT_SUM) return add8(i32x4.splat(0), x, w0, w1);
  return i16x8.add(dotPairs(v128.load32_splat(x), w0), dotPairs(v128.load32_splat(x, 4), w1));
}

/** dot + {@link sum8}. */
// @ts-ignore: decorator
@inline
export function add8(dot: v128, x: usize, w0: v128, w1: v128): v128 {
  if (DOT_SUM) {
    dot = dotSum(dot, v128.load32_splat(x), w0);
    return dotSum(dot, v128.load32_splat(x, 4), w1);
  }
  return i16x8.add(dot, sum8(x, w0, w1));
}

/**
 * Σ (q - zero)·x from Σ q·x of a half or of two, and the sums of x there; `zeros` are words. Sums that wrapped round i16 come
 * right, as long as the difference fits.
 */
// @ts-ignore: decorator
@inline
export function lessZero(dot: v128, sums: v128, zeros: v128): v128 {
  if (DOT_SUM) return i32x4.sub(dot, i32x4.dot_i16x8_s(sums, zeros));
  return i16x8.sub(dot, i16x8.mul(sums, zeros));
}

/** A dot as f32, one a row. */
// @ts-ignore: decorator
@inline
export function wholeOf(dot: v128): v128 {
  return f32x4.convert_i32x4_s(DOT_SUM ? dot : widen(dot));
}

/** sum + a · scale·dot, a being the factor of the activation block `x`. */
// @ts-ignore: decorator
@inline
export function addScaled(sum: v128, dot: v128, scale: v128, x: usize): v128 {
  const whole = DOT_SUM ? f32x4.mul(f32x4.convert_i32x4_s(dot), scale) : f32x4.convert_i32x4_s(i32x4.dot_i16x8_s(dot, scale));
  return f32x4.add(sum, f32x4.mul(whole, v128.load32_splat(x, FACTOR)));
}

/** For {@link unsignedScale}: which byte of a lane the scale is. */
// @ts-ignore: decorator
@inline
export function unsignedNumbers(index: i32): v128 {
  if (DOT_SUM) {
    return numbered(i8x16(0, -128, -128, -128, 4, -128, -128, -128, 8, -128, -128, -128, 12, -128, -128, -128), index);
  }
  return numbered(i8x16(0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12, -128), index * 0x00010001);
}
/** For {@link signedScale}. */
// @ts-ignore: decorator
@inline
export function signedNumbers(index: i32): v128 {
  if (DOT_SUM) {
    return numbered(i8x16(-128, -128, -128, 0, -128, -128, -128, 4, -128, -128, -128, 8, -128, -128, -128, 12), index << 24);
  }
  return numbered(i8x16(-128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12), index * 0x01000100);
}

// @ts-ignore: decorator
@inline
function numbered(first: v128, more: i32): v128 {
  return i32x4.add(first, i32x4.splat(more));
}

/** A byte of each lane as {@link addScaled} takes it. */
// @ts-ignore: decorator
@inline
export function unsignedScale(lanes: v128, numbers: v128): v128 {
  const bytes = pick(lanes, numbers);
  return DOT_SUM ? f32x4.convert_i32x4_s(bytes) : bytes;
}
/** The same of a signed byte, which comes 2^8 or 2^24 times as large, with its sign. */
// @ts-ignore: decorator
@inline
export function signedScale(lanes: v128, numbers: v128): v128 {
  const bytes = pick(lanes, numbers);
  return DOT_SUM ? f32x4.convert_i32x4_s(i32x4.shr_s(bytes, 24)) : i16x8.shr_s(bytes, 8);
}

/** Bytes of `lanes` by their numbers; 0 where a number is negative. */
// @ts-ignore: decorator
@inline
export function pick(lanes: v128, numbers: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return i8x16.relaxed_swizzle(lanes, numbers);
  return i8x16.swizzle(lanes, numbers);
}
