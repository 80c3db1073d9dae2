// The one arithmetic of block formats: a tile of weights (four rows × 32 columns) against one activation block. Integer sums
// are exact, and the f32 operations are the same in the same order wherever this is used, so step rows and prompt rows of
// any count give the same bits.
//
// The type parameter names how bytes may be added in i16 before widening (see `kindOf`):
// u8: to 15, one sum of 32 columns; i8: to 31, two sums of 16; u16: halves of 16 columns with a scale and an offset each, to 31;
// i16: halves with a scale each and a zero, which is taken off each byte; u32: signed bytes times words; u64 and i64: as u8 and
// i8, times digits.

import { dotPairs, dotSum, FACTOR, HALF_SUMS, INT16_BLOCK, INT8_BLOCK, lane0, lane1, widen } from './lanes';
import { OFFSET, OFFSET_SECOND, SCALE, SCALE_SECOND, ZERO } from './tiles/tile';

/** Exact Σ q·a of 16 columns in i16: activation bytes at `a`, four columns of four rows each in w0 … w3. */
// @ts-ignore: decorator
@inline
function quarterSum(a: usize, w0: v128, w1: v128, w2: v128, w3: v128): v128 {
  return i16x8.add(
    i16x8.add(dotPairs(v128.load32_splat(a), w0), dotPairs(v128.load32_splat(a, 4), w1)),
    i16x8.add(dotPairs(v128.load32_splat(a, 8), w2), dotPairs(v128.load32_splat(a, 12), w3)),
  );
}

/** sum + the same in i32, for the build `DOT_SUM`. */
// @ts-ignore: decorator
@inline
function addQuarter(sum: v128, a: usize, w: usize): v128 {
  sum = dotSum(sum, v128.load32_splat(a), v128.load(w));
  sum = dotSum(sum, v128.load32_splat(a, 4), v128.load(w, 16));
  sum = dotSum(sum, v128.load32_splat(a, 8), v128.load(w, 32));
  return dotSum(sum, v128.load32_splat(a, 12), v128.load(w, 48));
}

/** Exact Σ q·a over 32 columns of signed bytes and 32 words, in i32. */
// @ts-ignore: decorator
@inline
export function signedSum(w: usize, x: usize): v128 {
  // Rows 0 and 1 in `low`, 2 and 3 in `high`, each as two partial sums.
  let low = i32x4.splat(0);
  let high = i32x4.splat(0);
  for (let i: usize = 0; i < 4; i++) {
    const a = v128.load(x + (i << 4));
    const first = i64x2.shuffle(a, a, 0, 0);
    const second = i64x2.shuffle(a, a, 1, 1);
    const at = w + (i << 5);
    low = i32x4.add(low, i32x4.dot_i16x8_s(first, v128.load_ext<i8>(at)));
    high = i32x4.add(high, i32x4.dot_i16x8_s(first, v128.load_ext<i8>(at, 8)));
    low = i32x4.add(low, i32x4.dot_i16x8_s(second, v128.load_ext<i8>(at, 16)));
    high = i32x4.add(high, i32x4.dot_i16x8_s(second, v128.load_ext<i8>(at, 24)));
  }
  return i32x4.add(i32x4.shuffle(low, high, 0, 2, 4, 6), i32x4.shuffle(low, high, 1, 3, 5, 7));
}

/** Exact Σ q·a over 16 columns from half `half` on (0 or 1), a row a lane. */
// @ts-ignore: decorator
@inline
function halfSum(tile: usize, x: usize, half: usize): v128 {
  if (DOT_SUM) return addQuarter(i32x4.splat(0), x + (half << 4), tile + (half << 6));
  return widen(halfPairs(tile, x, half));
}

/** The same in i16, two a row; exact when it is known to fit, since sums wrap. */
// @ts-ignore: decorator
@inline
function halfPairs(tile: usize, x: usize, half: usize): v128 {
  const w = tile + (half << 6);
  return quarterSum(x + (half << 4), v128.load(w), v128.load(w, 16), v128.load(w, 32), v128.load(w, 48));
}

/** Exact Σ (q - zero)·a of a half; 8 columns · 32 · 127 fit an i16. */
// @ts-ignore: decorator
@inline
function signedHalfSum(tile: usize, x: usize, half: usize): v128 {
  const sums = v128.load32_splat(x + (half << 2), HALF_SUMS);
  const zero = v128.load(tile, ZERO);
  if (DOT_SUM) return i32x4.sub(halfSum(tile, x, half), i32x4.dot_i16x8_s(sums, zero));
  return widen(i16x8.sub(halfPairs(tile, x, half), i16x8.mul(sums, zero)));
}

/** Exact Σ q·a over 32 columns and bytes of activations. */
// @ts-ignore: decorator
@inline
function wholeSum<Kind>(tile: usize, x: usize): v128 {
  if (DOT_SUM) return addQuarter(addQuarter(i32x4.splat(0), x, tile), x + 16, tile + 64);
  if (isSigned<Kind>()) return i32x4.add(halfSum(tile, x, 0), halfSum(tile, x, 1));
  return widen(i16x8.add(
    quarterSum(x, v128.load(tile), v128.load(tile, 16), v128.load(tile, 32), v128.load(tile, 48)),
    quarterSum(x + 16, v128.load(tile, 64), v128.load(tile, 80), v128.load(tile, 96), v128.load(tile, 112)),
  ));
}

/** 254 · high + low, of two sums over digits. */
// @ts-ignore: decorator
@inline
export function joinDigits(high: v128, low: v128): v128 {
  return i32x4.add(i32x4.sub(i32x4.shl(high, 8), i32x4.shl(high, 1)), low);
}

/** sum + Σq·a · (scale · d) + offset · d·Σa, with the factors of the activation block. */
// @ts-ignore: decorator
@inline
export function accumulate(sum: v128, dot: v128, scale: v128, offset: v128, factors: v128): v128 {
  const scaled = f32x4.mul(f32x4.convert_i32x4_s(dot), f32x4.mul(scale, lane0(factors)));
  return f32x4.add(f32x4.add(sum, scaled), f32x4.mul(offset, lane1(factors)));
}

/** offset · Σa of half of an activation block. */
// @ts-ignore: decorator
@inline
function offsetHalf(offset: v128, x: usize, half: usize): v128 {
  return f32x4.mul(offset, f32x4.convert_i32x4_s(widen(v128.load32_splat(x + (half << 2), HALF_SUMS))));
}

/** sum + d · (first · scale + second · scale of the second half). */
// @ts-ignore: decorator
@inline
function accumulateHalves(sum: v128, first: v128, second: v128, x: usize): v128 {
  return f32x4.add(sum, f32x4.mul(f32x4.add(first, second), v128.load32_splat(x, FACTOR)));
}

// @ts-ignore: decorator
@inline
function scaled(dot: v128, scale: v128): v128 {
  return f32x4.mul(f32x4.convert_i32x4_s(dot), scale);
}

/** sum + Σ q·a · (scale · d), for formats without an offset; `x` is a block of words. */
// @ts-ignore: decorator
@inline
export function accumulateScaled(sum: v128, dot: v128, scale: v128, x: usize): v128 {
  return f32x4.add(sum, f32x4.mul(f32x4.convert_i32x4_s(dot), f32x4.mul(scale, v128.load32_splat(x, 64))));
}

/** Bytes of an activation block. */
// @ts-ignore: decorator
@inline
export function blockOf<Kind>(): usize {
  return sizeof<Kind>() >= 4 ? INT16_BLOCK : INT8_BLOCK;
}

/** One tile against one activation block, added to `sum`. */
// @ts-ignore: decorator
@inline
export function dotTile<Kind>(tile: usize, x: usize, sum: v128): v128 {
  if (sizeof<Kind>() == 4) return accumulateScaled(sum, signedSum(tile, x), v128.load(tile, SCALE), x);
  if (sizeof<Kind>() == 8) {
    const dot = joinDigits(wholeSum<Kind>(tile, x), wholeSum<Kind>(tile, x + 32));
    return accumulate(sum, dot, v128.load(tile, SCALE), v128.load(tile, OFFSET), v128.load(x, 64));
  }
  if (sizeof<Kind>() == 1) {
    return accumulate(sum, wholeSum<Kind>(tile, x), v128.load(tile, SCALE), v128.load(tile, OFFSET), v128.load(x, 32));
  }
  const scale = v128.load(tile, SCALE);
  const scaleSecond = v128.load(tile, SCALE_SECOND);
  if (isSigned<Kind>()) {
    return accumulateHalves(
      sum, scaled(signedHalfSum(tile, x, 0), scale), scaled(signedHalfSum(tile, x, 1), scaleSecond), x,
    );
  }
  const first = f32x4.add(scaled(halfSum(tile, x, 0), scale), offsetHalf(v128.load(tile, OFFSET), x, 0));
  const second = f32x4.add(scaled(halfSum(tile, x, 1), scaleSecond), offsetHalf(v128.load(tile, OFFSET_SECOND), x, 1));
  return accumulateHalves(sum, first, second, x);
}
