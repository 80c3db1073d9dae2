// Q4_K, as `cells.ts` says. A block of 256 columns adds d · Σ a·scale·Σq·x - dmin · Σ minimum·a·Σx over its eight blocks of 32,
// where a is the activations' factor: scales multiply whole numbers, and f16 what all eight come to.

import { F16_BIAS, F16_KNEE, F16_MAGNITUDE, F16_TINY, FACTOR_SUM, HIGH_PAIR, INT8_BLOCK, loadF16Lanes, NIBBLE } from '../lanes';
import { BYTES, minimumsHigh, minimumsLow, scalesHigh, scalesLow } from '../tiles/q4_k';
import { byteOfLane } from '../tiles/tile';
import { add8, addScaled, rowsOf, sum8, unsignedNumbers, unsignedScale } from './cells';

/**
 * One row or two are multiplied with two groups, `a` and `b`: what is loaded of a row serves both, and four cells are as many
 * as registers hold. Cells 0 and 1 are rows of `a`, cells 2 and 3 the same rows of `b` or two more of `a`.
 */
// @ts-ignore: decorator
@inline
function twoGroups<Rows>(): bool {
  return rowsOf<Rows>() < 3;
}
// @ts-ignore: decorator
@inline
function hasFourth<Rows>(): bool {
  return rowsOf<Rows>() == 2 || rowsOf<Rows>() == 4;
}

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

/** Of `blocks` blocks; cell i goes to `out`i. */
export function multiplyQ4K<Rows>(
  a: usize, b: usize, blocks: i32, x0: usize, x1: usize, x2: usize, x3: usize,
  out0: usize, out1: usize, out2: usize, out3: usize,
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
    let at = a + 64, aScales = scalesLow(a, six), aMinimums = minimumsLow(a, six);
    let bt = at, bScales = aScales, bMinimums = aMinimums;
    if (twoGroups<Rows>()) bt = b + 64, bScales = scalesLow(b, six), bMinimums = minimumsLow(b, six);
    for (let half = 0; half < 2; half++) {
      // 64 columns: l is the block in the low nibbles, h the next one.
      for (let pair = 0; pair < 2; pair++) {
        const y2 = twoGroups<Rows>() ? x0 : x2, y3 = twoGroups<Rows>() ? x1 : x3;
        let l0: v128, l1 = zero, l2: v128, l3 = zero, h0: v128, h1 = zero, h2: v128, h3 = zero;

        let v0 = v128.load(at), v1 = v128.load(at, 16);
        let w0 = twoGroups<Rows>() ? v128.load(bt) : v0, w1 = twoGroups<Rows>() ? v128.load(bt, 16) : v1;
        l0 = low(x0, v0, v1, nibble);
        if (rowsOf<Rows>() > 1) l1 = low(x1, v0, v1, nibble);
        l2 = low(y2, w0, w1, nibble);
        if (hasFourth<Rows>()) l3 = low(y3, w0, w1, nibble);
        h0 = high(x0, v0, v1, nibble);
        if (rowsOf<Rows>() > 1) h1 = high(x1, v0, v1, nibble);
        h2 = high(y2, w0, w1, nibble);
        if (hasFourth<Rows>()) h3 = high(y3, w0, w1, nibble);

        v0 = v128.load(at, 32), v1 = v128.load(at, 48);
        w0 = twoGroups<Rows>() ? v128.load(bt, 32) : v0, w1 = twoGroups<Rows>() ? v128.load(bt, 48) : v1;
        l0 = addLow(l0, x0 + 8, v0, v1, nibble);
        if (rowsOf<Rows>() > 1) l1 = addLow(l1, x1 + 8, v0, v1, nibble);
        l2 = addLow(l2, y2 + 8, w0, w1, nibble);
        if (hasFourth<Rows>()) l3 = addLow(l3, y3 + 8, w0, w1, nibble);
        h0 = addHigh(h0, x0 + 8, v0, v1, nibble);
        if (rowsOf<Rows>() > 1) h1 = addHigh(h1, x1 + 8, v0, v1, nibble);
        h2 = addHigh(h2, y2 + 8, w0, w1, nibble);
        if (hasFourth<Rows>()) h3 = addHigh(h3, y3 + 8, w0, w1, nibble);

        v0 = v128.load(at, 64), v1 = v128.load(at, 80);
        w0 = twoGroups<Rows>() ? v128.load(bt, 64) : v0, w1 = twoGroups<Rows>() ? v128.load(bt, 80) : v1;
        l0 = addLow(l0, x0 + 16, v0, v1, nibble);
        if (rowsOf<Rows>() > 1) l1 = addLow(l1, x1 + 16, v0, v1, nibble);
        l2 = addLow(l2, y2 + 16, w0, w1, nibble);
        if (hasFourth<Rows>()) l3 = addLow(l3, y3 + 16, w0, w1, nibble);
        h0 = addHigh(h0, x0 + 16, v0, v1, nibble);
        if (rowsOf<Rows>() > 1) h1 = addHigh(h1, x1 + 16, v0, v1, nibble);
        h2 = addHigh(h2, y2 + 16, w0, w1, nibble);
        if (hasFourth<Rows>()) h3 = addHigh(h3, y3 + 16, w0, w1, nibble);

        v0 = v128.load(at, 96), v1 = v128.load(at, 112);
        w0 = twoGroups<Rows>() ? v128.load(bt, 96) : v0, w1 = twoGroups<Rows>() ? v128.load(bt, 112) : v1;
        l0 = addLow(l0, x0 + 24, v0, v1, nibble);
        if (rowsOf<Rows>() > 1) l1 = addLow(l1, x1 + 24, v0, v1, nibble);
        l2 = addLow(l2, y2 + 24, w0, w1, nibble);
        if (hasFourth<Rows>()) l3 = addLow(l3, y3 + 24, w0, w1, nibble);
        h0 = addHigh(h0, x0 + 24, v0, v1, nibble);
        if (rowsOf<Rows>() > 1) h1 = addHigh(h1, x1 + 24, v0, v1, nibble);
        h2 = addHigh(h2, y2 + 24, w0, w1, nibble);
        if (hasFourth<Rows>()) h3 = addHigh(h3, y3 + 24, w0, w1, nibble);

        let scale = unsignedScale(aScales, first), next = unsignedScale(aScales, second);
        let minimum = minimumOf(aMinimums, 0), nextMinimum = minimumOf(aMinimums, 1);
        s0 = addScaled(addScaled(s0, l0, scale, x0), h0, next, x0 + INT8_BLOCK);
        m0 = addMinimums(m0, minimum, nextMinimum, x0);
        if (rowsOf<Rows>() > 1) {
          s1 = addScaled(addScaled(s1, l1, scale, x1), h1, next, x1 + INT8_BLOCK);
          m1 = addMinimums(m1, minimum, nextMinimum, x1);
        }
        if (twoGroups<Rows>()) {
          scale = unsignedScale(bScales, first), next = unsignedScale(bScales, second);
          minimum = minimumOf(bMinimums, 0), nextMinimum = minimumOf(bMinimums, 1);
          bScales = i32x4.shr_u(bScales, 16), bMinimums = i32x4.shr_u(bMinimums, 16);
        }
        s2 = addScaled(addScaled(s2, l2, scale, y2), h2, next, y2 + INT8_BLOCK);
        m2 = addMinimums(m2, minimum, nextMinimum, y2);
        if (hasFourth<Rows>()) {
          s3 = addScaled(addScaled(s3, l3, scale, y3), h3, next, y3 + INT8_BLOCK);
          m3 = addMinimums(m3, minimum, nextMinimum, y3);
        }
        aScales = i32x4.shr_u(aScales, 16), aMinimums = i32x4.shr_u(aMinimums, 16);
        at += 128, bt += 128;
        x0 += 2 * INT8_BLOCK, x1 += 2 * INT8_BLOCK, x2 += 2 * INT8_BLOCK, x3 += 2 * INT8_BLOCK;
      }
      aScales = scalesHigh(a, nibble, top), aMinimums = minimumsHigh(a, nibble, top);
      if (twoGroups<Rows>()) bScales = scalesHigh(b, nibble, top), bMinimums = minimumsHigh(b, nibble, top);
    }
    let d = loadF16Lanes(a, magnitude, bias, knee, tiny), least = loadF16Lanes(a + 8, magnitude, bias, knee, tiny);
    sum0 = addBlock(sum0, d, s0, least, m0);
    if (rowsOf<Rows>() > 1) sum1 = addBlock(sum1, d, s1, least, m1);
    if (twoGroups<Rows>()) {
      d = loadF16Lanes(b, magnitude, bias, knee, tiny), least = loadF16Lanes(b + 8, magnitude, bias, knee, tiny);
    }
    sum2 = addBlock(sum2, d, s2, least, m2);
    if (hasFourth<Rows>()) sum3 = addBlock(sum3, d, s3, least, m3);
    a += BYTES, b += BYTES;
  }
  v128.store(out0, sum0);
  if (rowsOf<Rows>() > 1) v128.store(out1, sum1);
  v128.store(out2, sum2);
  if (hasFourth<Rows>()) v128.store(out3, sum3);
}
