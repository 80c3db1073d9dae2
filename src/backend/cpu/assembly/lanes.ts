// Small vector helpers that every kernel shares. A weight group is four rows side by side: lane r of a vector is row r.
//
// `DOT_SUM` is a constant that the build gives: 1 in the one for processors that multiply four pairs of bytes and add the
// products to a sum in one instruction, else 0.

/**
 * 15 and 48 where the compiler cannot see it: a constant vector is made anew at each use (three instructions), a value
 * stays in its register.
 */
export let NIBBLE: i32 = 15;
export let HIGH_PAIR: i32 = 48;

/** A constant vector as such a value. */
// @ts-ignore: decorator
@inline
export function kept(constant: v128): v128 {
  return v128.xor(constant, i32x4.splat(NIBBLE ^ 15));
}

/** One lane of a vector, four times. */
// @ts-ignore: decorator
@inline
export function lane0(v: v128): v128 {
  return i32x4.shuffle(v, v, 0, 0, 0, 0);
}
// @ts-ignore: decorator
@inline
export function lane1(v: v128): v128 {
  return i32x4.shuffle(v, v, 1, 1, 1, 1);
}
/**
 * Sixteen products, added in adjacent pairs: eight i16. `a` holds signed bytes of -127…127, `w` bytes of 0…127, so no sum
 * saturates, and the relaxed instruction means the same everywhere.
 */
// @ts-ignore: decorator
@inline
export function dotPairs(a: v128, w: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) {
    return i16x8.relaxed_dot_i8x16_i7x16_s(a, w);
  }
  return i16x8.narrow_i32x4_s(
    i32x4.dot_i16x8_s(i16x8.extend_low_i8x16_s(a), i16x8.extend_low_i8x16_s(w)),
    i32x4.dot_i16x8_s(i16x8.extend_high_i8x16_s(a), i16x8.extend_high_i8x16_s(w)),
  );
}

/**
 * sum + four products a lane, in i32, of bytes as {@link dotPairs} takes them. For the build `DOT_SUM` alone: where this is no
 * single instruction, it takes more of them than {@link dotPairs} and an addition.
 */
// @ts-ignore: decorator
@inline
export function dotSum(sum: v128, a: v128, w: v128): v128 {
  return i32x4.relaxed_dot_i8x16_i7x16_add_s(a, w, sum);
}

/** Eight i16 → four i32, adjacent pairs added. */
// @ts-ignore: decorator
@inline
export function widen(sums: v128): v128 {
  return i32x4.extadd_pairwise_i16x8_s(sums);
}

/** The constants of an f16 conversion; see {@link NIBBLE}. */
export let F16_MAGNITUDE: i32 = 0x7fff;
export let F16_BIAS: i32 = 0x70000000; // 224 in an f32's exponent
export let F16_KNEE: f32 = reinterpret<f32>(0x70800000); // 2^98
export let F16_TINY: f32 = reinterpret<f32>(0x07800000); // 2^-112

/**
 * Four f16 in the low halves of four lanes → f32; infinities become NaN, since neither is a weight. With 224 added to its
 * exponent a number is 2^112 times as large, where f32 has infinities and NaN at the same exponent as f16. A subnormal
 * m · 2^-24 comes out as x = 2^97 + m · 2^87 for m · 2^88 = 2x - 2^98, which is less than x there and not less elsewhere: so no
 * f32 subnormals, which take many times as long, though the scales of real models are often f16 subnormals.
 * `magnitude` … `tiny` are the constants above, four times each, made once by the caller.
 */
// @ts-ignore: decorator
@inline
export function f16Lanes(half: v128, magnitude: v128, bias: v128, knee: v128, tiny: v128): v128 {
  const x = i32x4.add(i32x4.shl(v128.and(half, magnitude), 13), bias);
  const large = f32x4.pmin(f32x4.sub(f32x4.add(x, x), knee), x);
  const value = f32x4.add(f32x4.mul(large, tiny), f32x4.mul(large, f32x4.splat(0)));
  return v128.or(value, i32x4.shl(i32x4.shr_u(half, 15), 31));
}

/** Four consecutive f16 in memory → f32. */
// @ts-ignore: decorator
@inline
export function loadF16Lanes(pointer: usize, magnitude: v128, bias: v128, knee: v128, tiny: v128): v128 {
  return f16Lanes(v128.load_ext<u16>(pointer), magnitude, bias, knee, tiny);
}

/** The same where it is rare. */
// @ts-ignore: decorator
@inline
export function loadF16(pointer: usize, offset: usize = 0): v128 {
  return loadF16Lanes(
    pointer + offset, i32x4.splat(F16_MAGNITUDE), i32x4.splat(F16_BIAS), f32x4.splat(F16_KNEE), f32x4.splat(F16_TINY),
  );
}

/** The constants of the shorter conversion. */
export let F16_BITS: i32 = 0x8fffe000;
export let F16_EXPONENT: i32 = 0x7c000000;
export let F16_SCALE: f32 = reinterpret<f32>(0x77800000); // 2^112

/**
 * {@link loadF16Lanes} in half the instructions, for scales among which subnormals are rare: of the formats with a scale for
 * 32 values. Subnormals are right, but slow.
 */
// @ts-ignore: decorator
@inline
export function loadF16Short(pointer: usize, bits: v128, exponent: v128, scale: v128): v128 {
  const top = i32x4.shl(v128.load_ext<u16>(pointer), 16);
  const value = f32x4.mul(v128.and(i32x4.shr_s(top, 3), bits), scale);
  const special = i32x4.eq(v128.and(top, exponent), exponent);
  return v128.or(value, i32x4.shr_u(special, 1));
}

/** Four f32 → four f16 in the low 64 bits, rounded to nearest even; too large becomes infinity. */
// @ts-ignore: decorator
@inline
export function toF16(value: v128): v128 {
  const sign = i32x4.shr_u(v128.and(value, i32x4.splat(0x80000000)), 16);
  const magnitude = v128.and(value, i32x4.splat(0x7fffffff));
  // Normal: rebias the exponent, round half to even on the 13 dropped bits.
  const odd = v128.and(i32x4.shr_u(magnitude, 13), i32x4.splat(1));
  const rounded = i32x4.shr_u(i32x4.add(i32x4.add(magnitude, i32x4.splat(0xc8000fff)), odd), 13);
  // Subnormal: adding 0.5 leaves the rounded mantissa in the low bits.
  const small = i32x4.sub(f32x4.add(magnitude, f32x4.splat(0.5)), i32x4.splat(0x3f000000));
  const huge = i32x4.ge_u(magnitude, i32x4.splat(0x477ff000)); // 65520 and above, NaN too
  const notANumber = i32x4.gt_u(magnitude, i32x4.splat(0x7f800000));
  let half = v128.bitselect(small, rounded, i32x4.lt_u(magnitude, i32x4.splat(0x38800000)));
  half = v128.bitselect(i32x4.splat(0x7c00), half, huge);
  half = v128.or(half, v128.and(notANumber, i32x4.splat(0x0200)));
  half = v128.or(half, sign);
  return i16x8.narrow_i32x4_u(half, half);
}

/** The sum of four lanes, (0 + 1) + (2 + 3). */
// @ts-ignore: decorator
@inline
export function sumLanes(value: v128): f32 {
  return (
    f32x4.extract_lane(value, 0) + f32x4.extract_lane(value, 1) +
    (f32x4.extract_lane(value, 2) + f32x4.extract_lane(value, 3))
  );
}

/** eˣ for x ≤ 88, within 2 ulp; below -87.3 it is 0. NaN stays NaN. Cody–Waite reduction and a degree-6 polynomial. */
// @ts-ignore: decorator
@inline
export function exp4(x: v128): v128 {
  const low = f32x4.lt(x, f32x4.splat(-87.3));
  const clamped = f32x4.min(f32x4.max(x, f32x4.splat(-87.3)), f32x4.splat(88.0));
  const n = f32x4.nearest(f32x4.mul(clamped, f32x4.splat(1.4426950408889634)));
  let r = f32x4.sub(clamped, f32x4.mul(n, f32x4.splat(0.693359375)));
  r = f32x4.sub(r, f32x4.mul(n, f32x4.splat(-2.12194440e-4)));
  let p = f32x4.splat(0.0013888889);
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(0.008333334));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(0.041666668));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(0.16666667));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(0.5));
  p = f32x4.add(f32x4.add(f32x4.mul(f32x4.mul(p, r), r), r), f32x4.splat(1.0));
  const power = i32x4.shl(i32x4.add(i32x4.trunc_sat_f32x4_s(n), i32x4.splat(127)), 23);
  return v128.andnot(f32x4.mul(p, power), low);
}

/** eˣ of one number. The standard library's keeps a table in memory, which an arena has no place for. */
// @ts-ignore: decorator
@inline
export function exp1(x: f32): f32 {
  return f32x4.extract_lane(exp4(f32x4.splat(x)), 0);
}

/** x·σ(x). */
// @ts-ignore: decorator
@inline
export function silu4(x: v128): v128 {
  // e^-x would overflow for x below -88; there the result is 0 to within f32.
  return f32x4.div(x, f32x4.add(f32x4.splat(1.0), exp4(f32x4.neg(x))));
}

/** Bytes of 32 encoded activations; see `activations.ts`. */
export const INT8_BLOCK: usize = 48;
/** In such a block: d, d·Σ, and the sums of its halves. */
export const FACTOR: usize = 32;
export const FACTOR_SUM: usize = 36;
export const HALF_SUMS: usize = 40;
export const INT16_BLOCK: usize = 80;
