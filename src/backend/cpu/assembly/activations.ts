// Rows of f32 activations and what is done to each by itself: integer encoding, norms, rotation, sums.

import { scale } from './gating';
import { exp1, INT16_BLOCK, INT8_BLOCK, sumLanes } from './lanes';

/** Largest magnitude of 32 f32; NaN when one of them is. */
// @ts-ignore: decorator
@inline
function largestOf(input: usize): f32 {
  let largest = f32x4.splat(0);
  for (let i: usize = 0; i < 128; i += 16) {
    largest = f32x4.max(largest, f32x4.abs(v128.load(input + i)));
  }
  return max<f32>(
    max<f32>(f32x4.extract_lane(largest, 0), f32x4.extract_lane(largest, 1)),
    max<f32>(f32x4.extract_lane(largest, 2), f32x4.extract_lane(largest, 3)),
  );
}

/** Below this a block counts as zero: the inverse of its scale would overflow. */
const LEAST: f32 = 3e-36;

// @ts-ignore: decorator
@inline
function toInts(values: v128): v128 {
  return i32x4.trunc_sat_f32x4_s(f32x4.nearest(values));
}

// @ts-ignore: decorator
@inline
function bytesOf(a: v128, b: v128, c: v128, d: v128): v128 {
  return i8x16.narrow_i16x8_s(i16x8.narrow_i32x4_s(a, b), i16x8.narrow_i32x4_s(c, d));
}

/** d and d·Σ of a block. */
// @ts-ignore: decorator
@inline
function storeFactors(at: usize, scale: f32, sum: i32): void {
  f32.store(at, scale);
  f32.store(at, scale * <f32>sum, 4);
}

/**
 * Encodes `blocks` blocks of 32 f32 as bytes of -127…127 with one scale d: 32 bytes, d, d·Σ, and of each half of 16 bytes two
 * i16, Σ of the first and second of every four and Σ of the others, as a product of bytes in pairs adds them; 48 bytes in
 * all. NaN in a block makes its scale NaN, so it is not lost.
 */
export function encodeInt8(input: usize, output: usize, blocks: i32): void {
  for (let block = 0; block < blocks; block++) {
    const top = largestOf(input);
    const usable = !(top < LEAST);
    const inverse = f32x4.splat(usable ? 127 / top : 0);
    let total = 0;
    for (let half: usize = 0; half < 2; half++) {
      const at = input + half * 64;
      const a = toInts(f32x4.mul(v128.load(at), inverse));
      const b = toInts(f32x4.mul(v128.load(at, 16), inverse));
      const c = toInts(f32x4.mul(v128.load(at, 32), inverse));
      const d = toInts(f32x4.mul(v128.load(at, 48), inverse));
      v128.store(output + half * 16, bytesOf(a, b, c, d));
      const sums = i32x4.add(i32x4.add(a, b), i32x4.add(c, d));
      const pairs = i32x4.add(i32x4.shuffle(sums, sums, 0, 2, 0, 2), i32x4.shuffle(sums, sums, 1, 3, 1, 3));
      v128.store32_lane(output + half * 4, i16x8.narrow_i32x4_s(pairs, pairs), 0, 40);
      total += i32x4.extract_lane(pairs, 0) + i32x4.extract_lane(pairs, 1);
    }
    storeFactors(output + 32, usable ? top / 127 : 0, total);
    input += 128;
    output += INT8_BLOCK;
  }
}

/**
 * Encodes blocks of 32 f32 as 16-bit integers 254·h + l with one scale: h is the nearest byte of -127…127, l what is left in
 * 254ths. `digits`: 32 bytes h, then 32 bytes l; else 32 i16. With d and d·Σ 80 bytes.
 */
export function encodeInt16(input: usize, output: usize, blocks: i32, digits: i32): void {
  for (let block = 0; block < blocks; block++) {
    const top = largestOf(input);
    const usable = !(top < LEAST);
    const inverse = f32x4.splat(usable ? 127 / top : 0);
    let total = 0;
    for (let half: usize = 0; half < 2; half++) {
      const at = input + half * 64;
      let sum = i32x4.splat(0);
      for (let pair: usize = 0; pair < 2; pair++) {
        const x = f32x4.mul(v128.load(at + pair * 32), inverse);
        const y = f32x4.mul(v128.load(at + pair * 32, 16), inverse);
        const xHigh = f32x4.nearest(x);
        const yHigh = f32x4.nearest(y);
        const xLow = toInts(f32x4.mul(f32x4.sub(x, xHigh), f32x4.splat(254)));
        const yLow = toInts(f32x4.mul(f32x4.sub(y, yHigh), f32x4.splat(254)));
        const xh = i32x4.trunc_sat_f32x4_s(xHigh);
        const yh = i32x4.trunc_sat_f32x4_s(yHigh);
        const xWord = i32x4.add(i32x4.mul(xh, i32x4.splat(254)), xLow);
        const yWord = i32x4.add(i32x4.mul(yh, i32x4.splat(254)), yLow);
        sum = i32x4.add(sum, i32x4.add(xWord, yWord));
        if (digits) {
          const high = i16x8.narrow_i32x4_s(xh, yh);
          const low = i16x8.narrow_i32x4_s(xLow, yLow);
          const to = output + half * 16 + pair * 8;
          v128.store64_lane(to, i8x16.narrow_i16x8_s(high, high), 0);
          v128.store64_lane(to, i8x16.narrow_i16x8_s(low, low), 0, 32);
        } else {
          v128.store(output + half * 32 + pair * 16, i16x8.narrow_i32x4_s(xWord, yWord));
        }
      }
      total += sumInts(sum);
    }
    storeFactors(output + 64, usable ? top / (127 * 254) : 0, total);
    input += 128;
    output += INT16_BLOCK;
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
 * Sums run in f64 over four lanes' f32 squares, sixteen elements at a time. `weight` 0: every element has the weight 1.
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
  if (!weight) {
    scale(input, output, factor, width);
    return <f32>mean;
  }
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

/**
 * output = Σ weights[i] · (input + i · stride) over `used` vectors in order, then + gate · shared where `shared` is not 0;
 * `count` f32. Each element is written once, when it is whole.
 */
export function combine(
  input: usize, stride: usize, weights: usize, used: i32, shared: usize, gate: f32, output: usize, count: i32,
): void {
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const at = <usize>i << 2;
    let sum = f32x4.splat(0);
    for (let rank = 0; rank < used; rank++) {
      const weight = v128.load32_splat(weights + (<usize>rank << 2));
      sum = f32x4.add(sum, f32x4.mul(weight, v128.load(input + <usize>rank * stride + at)));
    }
    if (shared) sum = f32x4.add(sum, f32x4.mul(f32x4.splat(gate), v128.load(shared + at)));
    v128.store(output + at, sum);
  }
  for (; i < count; i++) {
    const at = <usize>i << 2;
    let sum: f32 = 0;
    for (let rank = 0; rank < used; rank++) {
      sum += f32.load(weights + (<usize>rank << 2)) * f32.load(input + <usize>rank * stride + at);
    }
    if (shared) sum += gate * f32.load(shared + at);
    f32.store(output + at, sum);
  }
}

/** σ(x). */
export function sigmoid(x: f32): f32 {
  return 1 / (1 + exp1(-x));
}

/**
 * Rotates 2·`pairs` elements of `heads` vectors of `headDim`, from element `from` on; `table` holds `pairs` cosines, then
 * `pairs` sines. `half`: elements j and j + pairs are a pair; otherwise 2j and 2j + 1. `output` may be `input`.
 */
export function rope(
  input: usize, output: usize, table: usize, heads: i32, headDim: i32, from: i32, pairs: i32, half: i32,
): void {
  const sines = table + (<usize>pairs << 2);
  const stride = <usize>headDim << 2;
  const first = <usize>from << 2;
  const rest = first + (<usize>pairs << 3);
  for (let head = 0; head < heads; head++) {
    for (let j = 0; j < pairs; j++) {
      const a: usize = first + (half ? <usize>j << 2 : <usize>j << 3);
      const b: usize = a + (half ? <usize>pairs << 2 : 4);
      const x = f32.load(input + a);
      const y = f32.load(input + b);
      const cosine = f32.load(table + (<usize>j << 2));
      const sine = f32.load(sines + (<usize>j << 2));
      f32.store(output + a, x * cosine - y * sine);
      f32.store(output + b, x * sine + y * cosine);
    }
    if (input != output) {
      memory.copy(output, input, first);
      memory.copy(output + rest, input + rest, stride - rest);
    }
    input += stride;
    output += stride;
  }
}
