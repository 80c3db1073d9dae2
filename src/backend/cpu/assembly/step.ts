// One row of a step against the formats that matter most: nibbles go from memory to the dot product through registers. The
// arithmetic is `dot.ts`'s own, so the bits are those of the tiled path.

import { accumulate, accumulateScaled, joinDigits, signedSum } from './dot';
import {
  dotPairs, F16_BIAS, F16_BITS, F16_EXPONENT, F16_KNEE, F16_MAGNITUDE, F16_SCALE, F16_TINY, HIGH_PAIR, INT16_BLOCK, lane0,
  lane1, lane2, lane3, loadF16Lanes, loadF16Short, NIBBLE, widen,
} from './lanes';
import { minimumsHigh, minimumsLow, scalesHigh, scalesLow } from './tiles/q4_k';
import { scaleOf } from './tiles/q6_k';
import { byteOfLane } from './tiles/tile';

/** Σ q·a over 16 columns in i16. */
// @ts-ignore: decorator
@inline
function sum16(a: v128, w0: v128, w1: v128, w2: v128, w3: v128): v128 {
  return i16x8.add(
    i16x8.add(dotPairs(lane0(a), w0), dotPairs(lane1(a), w1)),
    i16x8.add(dotPairs(lane2(a), w2), dotPairs(lane3(a), w3)),
  );
}

/** The same, bytes in the low nibbles of w0 … w3. */
// @ts-ignore: decorator
@inline
function lowSum(a: v128, w0: v128, w1: v128, w2: v128, w3: v128, mask: v128): v128 {
  return sum16(a, v128.and(w0, mask), v128.and(w1, mask), v128.and(w2, mask), v128.and(w3, mask));
}

/** The same, high nibbles. */
// @ts-ignore: decorator
@inline
function highSum(a: v128, w0: v128, w1: v128, w2: v128, w3: v128, mask: v128): v128 {
  return lowSum(a, i16x8.shr_u(w0, 4), i16x8.shr_u(w1, 4), i16x8.shr_u(w2, 4), i16x8.shr_u(w3, 4), mask);
}

export function stepQ4K(weight: usize, groups: i32, groupBytes: usize, tiles: i32, x: usize, out: usize): void {
  const blocks = tiles >> 3;
  const mask = i8x16.splat(<i8>NIBBLE);
  const magnitude = i32x4.splat(F16_MAGNITUDE);
  const bias = i32x4.splat(F16_BIAS);
  const knee = f32x4.splat(F16_KNEE);
  const tiny = f32x4.splat(F16_TINY);
  for (let group = 0; group < groups; group++) {
    let from = weight + <usize>group * groupBytes;
    let at = x;
    let sum = f32x4.splat(0);
    for (let block = 0; block < blocks; block++) {
      const d = loadF16Lanes(from, magnitude, bias, knee, tiny);
      const minimum = f32x4.neg(loadF16Lanes(from + 8, magnitude, bias, knee, tiny));
      let scales = scalesLow(from);
      let minimums = minimumsLow(from);
      sum = q4Pair(from + 64, at, sum, d, minimum, scales, minimums, 0, mask);
      sum = q4Pair(from + 192, at + 96, sum, d, minimum, scales, minimums, 2, mask);
      scales = scalesHigh(from);
      minimums = minimumsHigh(from);
      sum = q4Pair(from + 320, at + 192, sum, d, minimum, scales, minimums, 0, mask);
      sum = q4Pair(from + 448, at + 288, sum, d, minimum, scales, minimums, 2, mask);
      from += 576;
      at += 384;
    }
    v128.store(out, sum);
    out += 16;
  }
}

/** 64 columns: blocks `index` and `index` + 1 of four. */
// @ts-ignore: decorator
@inline
function q4Pair(
  packed: usize, x: usize, sum: v128, d: v128, least: v128, scales: v128, minimums: v128, index: i32, mask: v128,
): v128 {
  const w0 = v128.load(packed);
  const w1 = v128.load(packed, 16);
  const w2 = v128.load(packed, 32);
  const w3 = v128.load(packed, 48);
  const low = lowSum(v128.load(x), w0, w1, w2, w3, mask);
  const high = highSum(v128.load(x, 48), w0, w1, w2, w3, mask);
  const w4 = v128.load(packed, 64);
  const w5 = v128.load(packed, 80);
  const w6 = v128.load(packed, 96);
  const w7 = v128.load(packed, 112);
  const lowDot = widen(i16x8.add(low, lowSum(v128.load(x, 16), w4, w5, w6, w7, mask)));
  const highDot = widen(i16x8.add(high, highSum(v128.load(x, 64), w4, w5, w6, w7, mask)));
  sum = accumulate(
    sum, lowDot,
    f32x4.mul(d, f32x4.convert_i32x4_s(byteOfLane(scales, index))),
    f32x4.mul(least, f32x4.convert_i32x4_s(byteOfLane(minimums, index))), v128.load(x, 32),
  );
  return accumulate(
    sum, highDot,
    f32x4.mul(d, f32x4.convert_i32x4_s(byteOfLane(scales, index + 1))),
    f32x4.mul(least, f32x4.convert_i32x4_s(byteOfLane(minimums, index + 1))), v128.load(x, 80),
  );
}

export function stepQ4_1(weight: usize, groups: i32, groupBytes: usize, tiles: i32, x: usize, out: usize): void {
  const mask = i8x16.splat(<i8>NIBBLE);
  const bits = i32x4.splat(F16_BITS);
  const exponent = i32x4.splat(F16_EXPONENT);
  const power = f32x4.splat(F16_SCALE);
  for (let group = 0; group < groups; group++) {
    let from = weight + <usize>group * groupBytes;
    let at = x;
    let sum = f32x4.splat(0);
    for (let tile = 0; tile < tiles; tile++) {
      const w0 = v128.load(from, 16);
      const w1 = v128.load(from, 32);
      const w2 = v128.load(from, 48);
      const w3 = v128.load(from, 64);
      const l0 = v128.and(w0, mask);
      const l1 = v128.and(w1, mask);
      const l2 = v128.and(w2, mask);
      const l3 = v128.and(w3, mask);
      const h0 = v128.and(i16x8.shr_u(w0, 4), mask);
      const h1 = v128.and(i16x8.shr_u(w1, 4), mask);
      const h2 = v128.and(i16x8.shr_u(w2, 4), mask);
      const h3 = v128.and(i16x8.shr_u(w3, 4), mask);
      const high = widen(i16x8.add(sum16(v128.load(at), l0, l1, l2, l3), sum16(v128.load(at, 16), h0, h1, h2, h3)));
      const low = widen(i16x8.add(sum16(v128.load(at, 32), l0, l1, l2, l3), sum16(v128.load(at, 48), h0, h1, h2, h3)));
      sum = accumulate(
        sum, joinDigits(high, low), loadF16Short(from, bits, exponent, power), loadF16Short(from + 8, bits, exponent, power),
        v128.load(at, 64),
      );
      from += 80;
      at += INT16_BLOCK;
    }
    v128.store(out, sum);
    out += 16;
  }
}

export function stepQ8_0(weight: usize, groups: i32, groupBytes: usize, tiles: i32, x: usize, out: usize): void {
  const bits = i32x4.splat(F16_BITS);
  const exponent = i32x4.splat(F16_EXPONENT);
  const power = f32x4.splat(F16_SCALE);
  for (let group = 0; group < groups; group++) {
    let from = weight + <usize>group * groupBytes;
    let at = x;
    let sum = f32x4.splat(0);
    for (let tile = 0; tile < tiles; tile++) {
      const dot = signedSum(from + 8, at);
      sum = accumulateScaled(sum, dot, loadF16Short(from, bits, exponent, power), at);
      from += 136;
      at += INT16_BLOCK;
    }
    v128.store(out, sum);
    out += 16;
  }
}

export function stepQ6K(weight: usize, groups: i32, groupBytes: usize, tiles: i32, x: usize, out: usize): void {
  const blocks = tiles >> 3;
  const mask = i8x16.splat(<i8>NIBBLE);
  const magnitude = i32x4.splat(F16_MAGNITUDE);
  const bias = i32x4.splat(F16_BIAS);
  const knee = f32x4.splat(F16_KNEE);
  const tiny = f32x4.splat(F16_TINY);
  const pair = i8x16.splat(<i8>HIGH_PAIR);
  for (let group = 0; group < groups; group++) {
    let from = weight + <usize>group * groupBytes;
    let at = x;
    let sum = f32x4.splat(0);
    for (let block = 0; block < blocks; block++) {
      const d = loadF16Lanes(from + 832, magnitude, bias, knee, tiny);
      sum = q6Half(from, from + 512, from + 768, d, at, sum, mask, pair);
      sum = q6Half(from + 256, from + 640, from + 800, d, at + 192, sum, mask, pair);
      from += 840;
      at += 384;
    }
    v128.store(out, sum);
    out += 16;
  }
}

/** 128 columns: four blocks of 32, whose bytes share the words they are packed in. */
// @ts-ignore: decorator
@inline
function q6Half(nibbles: usize, pairs: usize, scales: usize, d: v128, x: usize, sum: v128, mask: v128, pair: v128): v128 {
  const first = v128.load(scales);
  const second = v128.load(scales, 16);
  sum = q6Block(
    sum, q6Sum(nibbles, pairs, v128.load(x), mask, pair, 4, 0),
    q6Sum(nibbles + 64, pairs + 64, v128.load(x, 16), mask, pair, 4, 0), first, 0, d, x,
  );
  sum = q6Block(
    sum, q6Sum(nibbles + 128, pairs, v128.load(x, 48), mask, pair, 2, 0),
    q6Sum(nibbles + 192, pairs + 64, v128.load(x, 64), mask, pair, 2, 0), first, 2, d, x + 48,
  );
  sum = q6Block(
    sum, q6Sum(nibbles, pairs, v128.load(x, 96), mask, pair, 0, 4),
    q6Sum(nibbles + 64, pairs + 64, v128.load(x, 112), mask, pair, 0, 4), second, 0, d, x + 96,
  );
  return q6Block(
    sum, q6Sum(nibbles + 128, pairs, v128.load(x, 144), mask, pair, -2, 4),
    q6Sum(nibbles + 192, pairs + 64, v128.load(x, 160), mask, pair, -2, 4), second, 2, d, x + 144,
  );
}

/** Σ q·a over 16 columns: nibbles shifted down by `down`, their high bits up by `up` (down, when negative). */
// @ts-ignore: decorator
@inline
function q6Sum(nibbles: usize, pairs: usize, a: v128, mask: v128, pair: v128, up: i32, down: i32): v128 {
  const s0 = dotPairs(lane0(a), q6Bytes(nibbles, pairs, mask, pair, up, down));
  const s1 = dotPairs(lane1(a), q6Bytes(nibbles + 16, pairs + 16, mask, pair, up, down));
  const s2 = dotPairs(lane2(a), q6Bytes(nibbles + 32, pairs + 32, mask, pair, up, down));
  const s3 = dotPairs(lane3(a), q6Bytes(nibbles + 48, pairs + 48, mask, pair, up, down));
  return i32x4.add(widen(i16x8.add(s0, s1)), widen(i16x8.add(s2, s3)));
}

// @ts-ignore: decorator
@inline
function q6Bytes(nibbles: usize, pairs: usize, mask: v128, pair: v128, up: i32, down: i32): v128 {
  let low = v128.load(nibbles);
  if (down > 0) low = i16x8.shr_u(low, 4);
  let high = v128.load(pairs);
  if (up > 0) high = i16x8.shl(high, up);
  if (up < 0) high = i16x8.shr_u(high, -up);
  return v128.or(v128.and(low, mask), v128.and(high, pair));
}

/**
 * Adds a block of 32 as `accumulateHalves` does. The offset is -32 · scale; -32 goes to the sums instead, which is exact.
 */
// @ts-ignore: decorator
@inline
function q6Block(sum: v128, first: v128, second: v128, word: v128, index: i32, d: v128, x: usize): v128 {
  const scale = scaleOf(word, index, d);
  const other = scaleOf(word, index + 1, d);
  const factors = v128.load(x, 32);
  const sums = f32x4.mul(factors, f32x4.splat(-32));
  const activation = lane0(factors);
  const a = f32x4.mul(f32x4.convert_i32x4_s(first), f32x4.mul(scale, activation));
  const b = f32x4.mul(f32x4.convert_i32x4_s(second), f32x4.mul(other, activation));
  const c = f32x4.mul(scale, lane2(sums));
  const e = f32x4.mul(other, lane3(sums));
  return f32x4.add(sum, f32x4.add(f32x4.add(a, b), f32x4.add(c, e)));
}
