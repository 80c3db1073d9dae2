// One row against formats of 32 values a block: nibbles go from memory to the dot product through registers. The arithmetic is
// `dot.ts`'s own, so the bits are those of the tiled path.

import { accumulate, accumulateScaled, joinDigits, signedSum } from './dot';
import {
  dotPairs, F16_BITS, F16_EXPONENT, F16_SCALE, INT16_BLOCK, lane0, lane1, lane2, lane3, loadF16Short, NIBBLE, widen,
} from './lanes';

/** Σ q·a over 16 columns in i16. */
// @ts-ignore: decorator
@inline
function sum16(a: v128, w0: v128, w1: v128, w2: v128, w3: v128): v128 {
  return i16x8.add(
    i16x8.add(dotPairs(lane0(a), w0), dotPairs(lane1(a), w1)),
    i16x8.add(dotPairs(lane2(a), w2), dotPairs(lane3(a), w3)),
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
