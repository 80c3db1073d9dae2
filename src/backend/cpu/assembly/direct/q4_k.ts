// Q4_K, as `cells.ts` says. A block of 256 columns adds d · Σ a·scale·Σq·x - dmin · Σ minimum·a·Σx over its eight blocks of 32,
// where a is the activations' factor: scales multiply whole numbers, and f16 what all eight come to.

import { F16_BIAS, F16_KNEE, F16_MAGNITUDE, F16_TINY, FACTOR_SUM, HIGH_PAIR, INT8_BLOCK, loadF16Lanes, NIBBLE } from '../lanes';
import { BYTES, minimumsHigh, minimumsLow, scalesHigh, scalesLow } from '../tiles/q4_k';
import { byteOfLane } from '../tiles/tile';
import { add8, addScaled, rowsOf, sum8, unsignedNumbers, unsignedScale } from './cells';

/** Σ q·x of 8 columns in low nibbles. */
// @ts-ignore: decorator
@inline
function low(x: usize, w0: v128, w1: v128, nibble: v128): v128 {
  return sum8(x, v128.and(w0, nibble), v128.and(w1, nibble));
}
// @ts-ignore: decorator
@inline
function addLow(dot: v128, x: usize, w0: v128, w1: v128, nibble: v128): v128 {
  return add8(dot, x, v128.and(w0, nibble), v128.and(w1, nibble));
}

/** The same of the high nibbles, which belong to the next block. */
// @ts-ignore: decorator
@inline
function high(x: usize, w0: v128, w1: v128, nibble: v128): v128 {
  return low(x + INT8_BLOCK, i16x8.shr_u(w0, 4), i16x8.shr_u(w1, 4), nibble);
}
// @ts-ignore: decorator
@inline
function addHigh(dot: v128, x: usize, w0: v128, w1: v128, nibble: v128): v128 {
  return addLow(dot, x + INT8_BLOCK, i16x8.shr_u(w0, 4), i16x8.shr_u(w1, 4), nibble);
}

// @ts-ignore: decorator
@inline
function minimumOf(lanes: v128, index: i32): v128 {
  return f32x4.convert_i32x4_s(byteOfLane(lanes, index));
}

/** sum + Σ minimum·a·Σx of two blocks. */
// @ts-ignore: decorator
@inline
function addMinimums(sum: v128, minimum: v128, next: v128, x: usize): v128 {
  const first = f32x4.mul(minimum, v128.load32_splat(x, FACTOR_SUM));
  return f32x4.add(sum, f32x4.add(first, f32x4.mul(next, v128.load32_splat(x + INT8_BLOCK, FACTOR_SUM))));
}

// @ts-ignore: decorator
@inline
function addBlock(sum: v128, d: v128, scaled: v128, least: v128, minimums: v128): v128 {
  return f32x4.add(sum, f32x4.sub(f32x4.mul(d, scaled), f32x4.mul(least, minimums)));
}

export function multiplyQ4K<Rows>(
  group: usize, blocks: i32, x0: usize, x1: usize, x2: usize, x3: usize, out0: usize, out1: usize, out2: usize, out3: usize,
): void {
  const nibble = i8x16.splat(<i8>NIBBLE);
  const top = i8x16.splat(<i8>HIGH_PAIR);
  const six = v128.or(nibble, top);
  const magnitude = i32x4.splat(F16_MAGNITUDE);
  const bias = i32x4.splat(F16_BIAS);
  const knee = f32x4.splat(F16_KNEE);
  const tiny = f32x4.splat(F16_TINY);
  const first = unsignedNumbers(0);
  const second = unsignedNumbers(1);
  const zero = f32x4.splat(0);
  let sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero;
  for (let block = 0; block < blocks; block++) {
    let s0 = zero, s1 = zero, s2 = zero, s3 = zero;
    let m0 = zero, m1 = zero, m2 = zero, m3 = zero;
    let at = group + 64, scales = scalesLow(group, six), minimums = minimumsLow(group, six);
    for (let half = 0; half < 2; half++) {
      // 64 columns: l is the block in the low nibbles, h the next one.
      for (let pair = 0; pair < 2; pair++) {
        let l0: v128, l1 = zero, l2 = zero, l3 = zero, h0: v128, h1 = zero, h2 = zero, h3 = zero;

        let w0 = v128.load(at), w1 = v128.load(at, 16);
        l0 = low(x0, w0, w1, nibble);
        if (rowsOf<Rows>() > 1) l1 = low(x1, w0, w1, nibble);
        if (rowsOf<Rows>() > 2) l2 = low(x2, w0, w1, nibble);
        if (rowsOf<Rows>() > 3) l3 = low(x3, w0, w1, nibble);
        h0 = high(x0, w0, w1, nibble);
        if (rowsOf<Rows>() > 1) h1 = high(x1, w0, w1, nibble);
        if (rowsOf<Rows>() > 2) h2 = high(x2, w0, w1, nibble);
        if (rowsOf<Rows>() > 3) h3 = high(x3, w0, w1, nibble);

        w0 = v128.load(at, 32), w1 = v128.load(at, 48);
        l0 = addLow(l0, x0 + 8, w0, w1, nibble);
        if (rowsOf<Rows>() > 1) l1 = addLow(l1, x1 + 8, w0, w1, nibble);
        if (rowsOf<Rows>() > 2) l2 = addLow(l2, x2 + 8, w0, w1, nibble);
        if (rowsOf<Rows>() > 3) l3 = addLow(l3, x3 + 8, w0, w1, nibble);
        h0 = addHigh(h0, x0 + 8, w0, w1, nibble);
        if (rowsOf<Rows>() > 1) h1 = addHigh(h1, x1 + 8, w0, w1, nibble);
        if (rowsOf<Rows>() > 2) h2 = addHigh(h2, x2 + 8, w0, w1, nibble);
        if (rowsOf<Rows>() > 3) h3 = addHigh(h3, x3 + 8, w0, w1, nibble);

        w0 = v128.load(at, 64), w1 = v128.load(at, 80);
        l0 = addLow(l0, x0 + 16, w0, w1, nibble);
        if (rowsOf<Rows>() > 1) l1 = addLow(l1, x1 + 16, w0, w1, nibble);
        if (rowsOf<Rows>() > 2) l2 = addLow(l2, x2 + 16, w0, w1, nibble);
        if (rowsOf<Rows>() > 3) l3 = addLow(l3, x3 + 16, w0, w1, nibble);
        h0 = addHigh(h0, x0 + 16, w0, w1, nibble);
        if (rowsOf<Rows>() > 1) h1 = addHigh(h1, x1 + 16, w0, w1, nibble);
        if (rowsOf<Rows>() > 2) h2 = addHigh(h2, x2 + 16, w0, w1, nibble);
        if (rowsOf<Rows>() > 3) h3 = addHigh(h3, x3 + 16, w0, w1, nibble);

        w0 = v128.load(at, 96), w1 = v128.load(at, 112);
        l0 = addLow(l0, x0 + 24, w0, w1, nibble);
        if (rowsOf<Rows>() > 1) l1 = addLow(l1, x1 + 24, w0, w1, nibble);
        if (rowsOf<Rows>() > 2) l2 = addLow(l2, x2 + 24, w0, w1, nibble);
        if (rowsOf<Rows>() > 3) l3 = addLow(l3, x3 + 24, w0, w1, nibble);
        h0 = addHigh(h0, x0 + 24, w0, w1, nibble);
        if (rowsOf<Rows>() > 1) h1 = addHigh(h1, x1 + 24, w0, w1, nibble);
        if (rowsOf<Rows>() > 2) h2 = addHigh(h2, x2 + 24, w0, w1, nibble);
        if (rowsOf<Rows>() > 3) h3 = addHigh(h3, x3 + 24, w0, w1, nibble);

        const scale = unsignedScale(scales, first), next = unsignedScale(scales, second);
        const minimum = minimumOf(minimums, 0), nextMinimum = minimumOf(minimums, 1);
        s0 = addScaled(addScaled(s0, l0, scale, x0), h0, next, x0 + INT8_BLOCK);
        m0 = addMinimums(m0, minimum, nextMinimum, x0);
        if (rowsOf<Rows>() > 1) {
          s1 = addScaled(addScaled(s1, l1, scale, x1), h1, next, x1 + INT8_BLOCK);
          m1 = addMinimums(m1, minimum, nextMinimum, x1);
        }
        if (rowsOf<Rows>() > 2) {
          s2 = addScaled(addScaled(s2, l2, scale, x2), h2, next, x2 + INT8_BLOCK);
          m2 = addMinimums(m2, minimum, nextMinimum, x2);
        }
        if (rowsOf<Rows>() > 3) {
          s3 = addScaled(addScaled(s3, l3, scale, x3), h3, next, x3 + INT8_BLOCK);
          m3 = addMinimums(m3, minimum, nextMinimum, x3);
        }
        scales = i32x4.shr_u(scales, 16), minimums = i32x4.shr_u(minimums, 16);
        at += 128;
        x0 += 2 * INT8_BLOCK, x1 += 2 * INT8_BLOCK, x2 += 2 * INT8_BLOCK, x3 += 2 * INT8_BLOCK;
      }
      scales = scalesHigh(group, nibble, top), minimums = minimumsHigh(group, nibble, top);
    }
    const d = loadF16Lanes(group, magnitude, bias, knee, tiny), least = loadF16Lanes(group + 8, magnitude, bias, knee, tiny);
    sum0 = addBlock(sum0, d, s0, least, m0);
    if (rowsOf<Rows>() > 1) sum1 = addBlock(sum1, d, s1, least, m1);
    if (rowsOf<Rows>() > 2) sum2 = addBlock(sum2, d, s2, least, m2);
    if (rowsOf<Rows>() > 3) sum3 = addBlock(sum3, d, s3, least, m3);
    group += BYTES;
  }
  v128.store(out0, sum0);
  if (rowsOf<Rows>() > 1) v128.store(out1, sum1);
  if (rowsOf<Rows>() > 2) v128.store(out2, sum2);
  if (rowsOf<Rows>() > 3) v128.store(out3, sum3);
}
