// One row of a step against the formats that matter most: nibbles go from memory to the dot product through registers. The
// arithmetic is `dot.ts`'s own, so the bits are those of the tiled path.

import { dotPairs, loadF16, widen } from './lanes';
import { accumulate, accumulateHalves } from './dot';
import { minimumsHigh, minimumsLow, scalesHigh, scalesLow } from './tiles/q4_k';
import { scaleOf } from './tiles/q6_k';
import { byteOfLane, high4, low4 } from './tiles/tile';

export function stepQ4K(weight: usize, groups: i32, groupBytes: usize, tiles: i32, x: usize, out: usize): void {
  const blocks = tiles >> 3;
  for (let group = 0; group < groups; group++) {
    let from = weight + <usize>group * groupBytes;
    let at = x;
    let sum = f32x4.splat(0);
    for (let block = 0; block < blocks; block++) {
      const d = loadF16(from);
      const least = f32x4.neg(loadF16(from, 8));
      sum = q4Pair(from + 64, at, sum, d, least, scalesLow(from), minimumsLow(from), 0);
      sum = q4Pair(from + 192, at + 96, sum, d, least, scalesLow(from), minimumsLow(from), 2);
      sum = q4Pair(from + 320, at + 192, sum, d, least, scalesHigh(from), minimumsHigh(from), 0);
      sum = q4Pair(from + 448, at + 288, sum, d, least, scalesHigh(from), minimumsHigh(from), 2);
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
  packed: usize, x: usize, sum: v128, d: v128, least: v128, scales: v128, minimums: v128, index: i32,
): v128 {
  let low = i16x8.splat(0);
  let high = i16x8.splat(0);
  for (let i: usize = 0; i < 8; i++) {
    const nibbles = v128.load(packed + (i << 4));
    low = i16x8.add(low, dotPairs(v128.load32_splat(x + (i << 2)), low4(nibbles)));
    high = i16x8.add(high, dotPairs(v128.load32_splat(x + (i << 2), 48), high4(nibbles)));
  }
  sum = accumulate(
    sum, widen(low),
    f32x4.mul(d, f32x4.convert_i32x4_s(byteOfLane(scales, index))),
    f32x4.mul(least, f32x4.convert_i32x4_s(byteOfLane(minimums, index))), x,
  );
  return accumulate(
    sum, widen(high),
    f32x4.mul(d, f32x4.convert_i32x4_s(byteOfLane(scales, index + 1))),
    f32x4.mul(least, f32x4.convert_i32x4_s(byteOfLane(minimums, index + 1))), x + 48,
  );
}

export function stepQ4_1(weight: usize, groups: i32, groupBytes: usize, tiles: i32, x: usize, out: usize): void {
  for (let group = 0; group < groups; group++) {
    let from = weight + <usize>group * groupBytes;
    let at = x;
    let sum = f32x4.splat(0);
    for (let tile = 0; tile < tiles; tile++) {
      let low = i16x8.splat(0);
      let high = i16x8.splat(0);
      for (let i: usize = 0; i < 4; i++) {
        const nibbles = v128.load(from + (i << 4), 16);
        low = i16x8.add(low, dotPairs(v128.load32_splat(at + (i << 2)), low4(nibbles)));
        high = i16x8.add(high, dotPairs(v128.load32_splat(at + (i << 2), 16), high4(nibbles)));
      }
      sum = accumulate(sum, widen(i16x8.add(low, high)), loadF16(from), loadF16(from, 8), at);
      from += 80;
      at += 48;
    }
    v128.store(out, sum);
    out += 16;
  }
}

export function stepQ6K(weight: usize, groups: i32, groupBytes: usize, tiles: i32, x: usize, out: usize): void {
  const blocks = tiles >> 3;
  for (let group = 0; group < groups; group++) {
    let from = weight + <usize>group * groupBytes;
    let at = x;
    let sum = f32x4.splat(0);
    for (let block = 0; block < blocks; block++) {
      const d = loadF16(from, 832);
      sum = q6Half(from, from + 512, from + 768, d, at, sum);
      sum = q6Half(from + 256, from + 640, from + 800, d, at + 192, sum);
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
function q6Half(nibbles: usize, pairs: usize, scales: usize, d: v128, x: usize, sum: v128): v128 {
  let first0 = i32x4.splat(0);
  let first1 = i32x4.splat(0);
  let first2 = i32x4.splat(0);
  let first3 = i32x4.splat(0);
  let second0 = i32x4.splat(0);
  let second1 = i32x4.splat(0);
  let second2 = i32x4.splat(0);
  let second3 = i32x4.splat(0);
  const two = i8x16.splat(0x30);
  for (let i: usize = 0; i < 8; i += 2) {
    const w = nibbles + (i << 4);
    const p = pairs + (i << 4);
    const a = x + (i << 2);
    const l0 = v128.load(w);
    const l1 = v128.load(w, 16);
    const h0 = v128.load(w, 128);
    const h1 = v128.load(w, 144);
    const b0 = v128.load(p);
    const b1 = v128.load(p, 16);
    const s0 = widen(i16x8.add(
      dotPairs(v128.load32_splat(a), v128.or(low4(l0), v128.and(i8x16.shl(b0, 4), two))),
      dotPairs(v128.load32_splat(a, 4), v128.or(low4(l1), v128.and(i8x16.shl(b1, 4), two))),
    ));
    const s1 = widen(i16x8.add(
      dotPairs(v128.load32_splat(a, 48), v128.or(low4(h0), v128.and(i8x16.shl(b0, 2), two))),
      dotPairs(v128.load32_splat(a, 52), v128.or(low4(h1), v128.and(i8x16.shl(b1, 2), two))),
    ));
    const s2 = widen(i16x8.add(
      dotPairs(v128.load32_splat(a, 96), v128.or(high4(l0), v128.and(b0, two))),
      dotPairs(v128.load32_splat(a, 100), v128.or(high4(l1), v128.and(b1, two))),
    ));
    const s3 = widen(i16x8.add(
      dotPairs(v128.load32_splat(a, 144), v128.or(high4(h0), v128.and(i8x16.shr_u(b0, 2), two))),
      dotPairs(v128.load32_splat(a, 148), v128.or(high4(h1), v128.and(i8x16.shr_u(b1, 2), two))),
    ));
    if (i < 4) {
      first0 = i32x4.add(first0, s0);
      first1 = i32x4.add(first1, s1);
      first2 = i32x4.add(first2, s2);
      first3 = i32x4.add(first3, s3);
    } else {
      second0 = i32x4.add(second0, s0);
      second1 = i32x4.add(second1, s1);
      second2 = i32x4.add(second2, s2);
      second3 = i32x4.add(second3, s3);
    }
  }
  sum = q6Block(sum, first0, second0, v128.load(scales), 0, d, x);
  sum = q6Block(sum, first1, second1, v128.load(scales), 2, d, x + 48);
  sum = q6Block(sum, first2, second2, v128.load(scales, 16), 0, d, x + 96);
  return q6Block(sum, first3, second3, v128.load(scales, 16), 2, d, x + 144);
}

// @ts-ignore: decorator
@inline
function q6Block(sum: v128, first: v128, second: v128, word: v128, index: i32, d: v128, x: usize): v128 {
  const scale = scaleOf(word, index, d);
  const other = scaleOf(word, index + 1, d);
  const zero = f32x4.splat(-32);
  return accumulateHalves(sum, first, second, scale, f32x4.mul(scale, zero), other, f32x4.mul(other, zero), x);
}
