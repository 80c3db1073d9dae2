// What the direct kernels share. They take weights from memory to the products through registers, for up to four cells at once,
// a cell being a group of four weight rows times one row of activations: what is decoded once serves every row. Whole numbers
// are summed up exactly, and a cell's f32 operations are the same in the same order whatever cells are beside it.

import { dotPairs, FACTOR } from '../lanes';

/** How many rows of activations a kernel takes, by its type parameter: u8 one, u16 two, u32 three, u64 four. */
// @ts-ignore: decorator
@inline
export function rowsOf<Rows>(): i32 {
  return sizeof<Rows>() == 8 ? 4 : sizeof<Rows>() == 4 ? 3 : sizeof<Rows>();
}

/** Σ q·x of 8 columns, bytes of four rows in `w0` and `w1`: eight i16, two a row. */
// @ts-ignore: decorator
@inline
export function sum8(x: usize, w0: v128, w1: v128): v128 {
  return i16x8.add(dotPairs(v128.load32_splat(x), w0), dotPairs(v128.load32_splat(x, 4), w1));
}

/** sum + a · scale·Σq·x of an activation block `x`, a being its factor; `dot` and `scale` hold two i16 a row. */
// @ts-ignore: decorator
@inline
export function addScaled(sum: v128, dot: v128, scale: v128, x: usize): v128 {
  return f32x4.add(sum, f32x4.mul(f32x4.convert_i32x4_s(i32x4.dot_i16x8_s(dot, scale)), v128.load32_splat(x, FACTOR)));
}

/** For {@link pick}: byte `index` of each lane as two i16 of the lane. */
// @ts-ignore: decorator
@inline
export function asWords(index: i32): v128 {
  const numbers = i8x16(0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12, -128);
  return i32x4.add(numbers, i32x4.splat(index * 0x00010001));
}
/** The same, 256 times as large, which leaves it its sign. */
// @ts-ignore: decorator
@inline
export function asHighBytes(index: i32): v128 {
  const numbers = i8x16(-128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12);
  return i32x4.add(numbers, i32x4.splat(index * 0x01000100));
}

/** Bytes of `lanes` by their numbers; 0 where a number is negative. */
// @ts-ignore: decorator
@inline
export function pick(lanes: v128, numbers: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return i8x16.relaxed_swizzle(lanes, numbers);
  return i8x16.swizzle(lanes, numbers);
}
