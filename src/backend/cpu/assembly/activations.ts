// Rows of f32 activations and what is done to each by itself: int8 quantisation, norms, rotation, gating, sums.

import { ACTIVATION_BLOCK, exp1, silu4, sumLanes } from './lanes';

/**
 * Quantises `blocks` blocks of 32 f32 to int8 with one scale each. A block takes 48 bytes: 32 values, the scale d, d·Σq, and
 * d·Σq of each half. NaN in a block makes its scale NaN, so it is not lost.
 */
export function quantise(input: usize, output: usize, blocks: i32): void {
  for (let block = 0; block < blocks; block++) {
    let largest = f32x4.splat(0);
    for (let i: usize = 0; i < 128; i += 16) {
      largest = f32x4.max(largest, f32x4.abs(v128.load(input + i)));
    }
    const top = max<f32>(
      max<f32>(f32x4.extract_lane(largest, 0), f32x4.extract_lane(largest, 1)),
      max<f32>(f32x4.extract_lane(largest, 2), f32x4.extract_lane(largest, 3)),
    );
    const scale: f32 = top / 127;
    // A block whose scale would be subnormal is zero: its inverse would overflow.
    const usable = scale >= 1.2e-38 || scale != scale;
    const inverse = f32x4.splat(usable ? 127 / top : 0);
    let first = i32x4.splat(0);
    let second = i32x4.splat(0);
    for (let half: usize = 0; half < 2; half++) {
      const at = input + half * 64;
      const a = i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(at), inverse)));
      const b = i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(at, 16), inverse)));
      const c = i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(at, 32), inverse)));
      const d = i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(at, 48), inverse)));
      const bytes = i8x16.narrow_i16x8_s(i16x8.narrow_i32x4_s(a, b), i16x8.narrow_i32x4_s(c, d));
      v128.store(output + half * 16, bytes);
      const sum = i32x4.add(i32x4.add(a, b), i32x4.add(c, d));
      if (half == 0) first = sum;
      else second = sum;
    }
    const used: f32 = usable ? scale : 0;
    const sumFirst = used * <f32>sumInts(first);
    const sumSecond = used * <f32>sumInts(second);
    f32.store(output + 32, used);
    f32.store(output + 36, used * <f32>(sumInts(first) + sumInts(second)));
    f32.store(output + 40, sumFirst);
    f32.store(output + 44, sumSecond);
    input += 128;
    output += ACTIVATION_BLOCK;
  }
}

// @ts-ignore: decorator
@inline
function sumInts(value: v128): i32 {
  return (
    i32x4.extract_lane(value, 0) + i32x4.extract_lane(value, 1) + i32x4.extract_lane(value, 2) + i32x4.extract_lane(value, 3)
  );
}

/**
 * RMS norm of one vector of `width` f32 (any width). Returns the mean square, which is not finite when the input is not.
 * Sums run in f64 over four lanes' f32 squares, sixteen elements at a time.
 */
export function rmsNorm(input: usize, weight: usize, output: usize, width: i32, epsilon: f32): f32 {
  let total: f64 = 0;
  let i = 0;
  for (; i + 16 <= width; i += 16) {
    const at = input + (<usize>i << 2);
    const a = v128.load(at);
    const b = v128.load(at, 16);
    const c = v128.load(at, 32);
    const d = v128.load(at, 48);
    const squares = f32x4.add(
      f32x4.add(f32x4.mul(a, a), f32x4.mul(b, b)),
      f32x4.add(f32x4.mul(c, c), f32x4.mul(d, d)),
    );
    total += <f64>sumLanes(squares);
  }
  for (; i < width; i++) {
    const x = f32.load(input + (<usize>i << 2));
    total += <f64>x * <f64>x;
  }
  const mean = total / <f64>width;
  const factor = <f32>(1.0 / Math.sqrt(mean + <f64>epsilon));
  const factors = f32x4.splat(factor);
  i = 0;
  for (; i + 4 <= width; i += 4) {
    const at = <usize>i << 2;
    v128.store(output + at, f32x4.mul(f32x4.mul(v128.load(input + at), factors), v128.load(weight + at)));
  }
  for (; i < width; i++) {
    const at = <usize>i << 2;
    f32.store(output + at, f32.load(input + at) * factor * f32.load(weight + at));
  }
  return <f32>mean;
}

/** output = left + right, `count` f32. */
export function add(left: usize, right: usize, output: usize, count: i32): void {
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const at = <usize>i << 2;
    v128.store(output + at, f32x4.add(v128.load(left + at), v128.load(right + at)));
  }
  for (; i < count; i++) {
    const at = <usize>i << 2;
    f32.store(output + at, f32.load(left + at) + f32.load(right + at));
  }
}

/** output += factor · input, `count` f32. */
export function addScaled(output: usize, input: usize, factor: f32, count: i32): void {
  const factors = f32x4.splat(factor);
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const at = <usize>i << 2;
    v128.store(output + at, f32x4.add(v128.load(output + at), f32x4.mul(factors, v128.load(input + at))));
  }
  for (; i < count; i++) {
    const at = <usize>i << 2;
    f32.store(output + at, f32.load(output + at) + factor * f32.load(input + at));
  }
}

/** output = silu(gate) ⊙ up, `count` f32; `output` may be `gate`. */
export function siluMul(gate: usize, up: usize, output: usize, count: i32): void {
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const at = <usize>i << 2;
    v128.store(output + at, f32x4.mul(silu4(v128.load(gate + at)), v128.load(up + at)));
  }
  for (; i < count; i++) {
    const at = <usize>i << 2;
    const g = f32x4.splat(f32.load(gate + at));
    f32.store(output + at, f32x4.extract_lane(silu4(g), 0) * f32.load(up + at));
  }
}

/** σ(x). */
export function sigmoid(x: f32): f32 {
  return 1 / (1 + exp1(-x));
}

/**
 * Rotates the first 2·`pairs` elements of `heads` vectors of `headDim`; `table` holds `pairs` cosines, then `pairs` sines.
 * `half`: elements j and j + pairs are a pair; otherwise 2j and 2j + 1. `output` may be `input`.
 */
export function rope(
  input: usize, output: usize, table: usize, heads: i32, headDim: i32, pairs: i32, half: i32,
): void {
  const sines = table + (<usize>pairs << 2);
  const stride = <usize>headDim << 2;
  for (let head = 0; head < heads; head++) {
    for (let j = 0; j < pairs; j++) {
      const a: usize = half ? <usize>j << 2 : <usize>j << 3;
      const b: usize = half ? <usize>(j + pairs) << 2 : a + 4;
      const x = f32.load(input + a);
      const y = f32.load(input + b);
      const cosine = f32.load(table + (<usize>j << 2));
      const sine = f32.load(sines + (<usize>j << 2));
      f32.store(output + a, x * cosine - y * sine);
      f32.store(output + b, x * sine + y * cosine);
    }
    if (input != output) {
      const rest = <usize>pairs << 3;
      memory.copy(output + rest, input + rest, stride - rest);
    }
    input += stride;
    output += stride;
  }
}
