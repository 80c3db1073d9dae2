// Q6_K, as `cells.ts` says, one group at a time. A block of 256 columns adds d · Σ a · scale·Σ(q - 32)·x over sixteen blocks of
// 16, where a is the activations' factor: what is scaled are whole numbers, below 2^24.

import {
  F16_BIAS, F16_KNEE, F16_MAGNITUDE, F16_TINY, HALF_SUMS, HIGH_PAIR, INT8_BLOCK, loadF16Lanes, NIBBLE,
} from '../lanes';
import { BYTES } from '../tiles/q6_k';
import { add8, addScaled, lessZero, rowsOf, signedNumbers, signedScale, sum8 } from './cells';

/** Four bits in place, and the two above them. */
// @ts-ignore: decorator
@inline
function bytes(low: v128, high: v128, nibble: v128, top: v128): v128 {
  return v128.or(v128.and(low, nibble), v128.and(high, top));
}

/**
 * sum + a · scale·Σ(q - 32)·x of half of the activation block `x`; `zeros` are words of 32. Sums of q·x in i16 may wrap; with
 * 32·x off they fit: 8 columns · 32 · 127.
 */
// @ts-ignore: decorator
@inline
function addHalf(sum: v128, x: usize, half: usize, scale: v128, zeros: v128, w0: v128, w1: v128, w2: v128, w3: v128): v128 {
  const at = x + (half << 4);
  const dot = add8(sum8(at, w0, w1), at + 8, w2, w3);
  const signed = lessZero(dot, v128.load32_splat(x + (half << 2), HALF_SUMS), zeros);
  return addScaled(sum, signed, scale, x);
}

export function multiplyQ6K<Rows>(
  group: usize, blocks: i32, x0: usize, x1: usize, x2: usize, x3: usize, out0: usize, out1: usize, out2: usize, out3: usize,
): void {
  const nibble = i8x16.splat(<i8>NIBBLE);
  const top = i8x16.splat(<i8>HIGH_PAIR);
  const magnitude = i32x4.splat(F16_MAGNITUDE);
  const bias = i32x4.splat(F16_BIAS);
  const knee = f32x4.splat(F16_KNEE);
  const tiny = f32x4.splat(F16_TINY);
  const zeros = i16x8.splat(<i16>(HIGH_PAIR - 16));
  const first = signedNumbers(0);
  const third = signedNumbers(2);
  const zero = f32x4.splat(0);
  let sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero;
  for (let block = 0; block < blocks; block++) {
    let s0 = zero, s1 = zero, s2 = zero, s3 = zero;
    let nibbles = group, pairs = group + 512, scales = group + 768;
    for (let part = 0; part < 2; part++) {
      // 128 columns, four blocks of 32, whose bytes share the words they are packed in; then half of each of these blocks.
      let word0 = v128.load(scales), word1 = v128.load(scales, 16);
      for (let half: usize = 0; half < 2; half++) {
        const p0 = v128.load(pairs), p1 = v128.load(pairs, 16), p2 = v128.load(pairs, 32), p3 = v128.load(pairs, 48);
        let n0 = v128.load(nibbles), n1 = v128.load(nibbles, 16), n2 = v128.load(nibbles, 32), n3 = v128.load(nibbles, 48);
        let w0: v128, w1: v128, w2: v128, w3: v128, scale: v128;
        // Block 0.
        w0 = bytes(n0, i16x8.shl(p0, 4), nibble, top), w1 = bytes(n1, i16x8.shl(p1, 4), nibble, top);
        w2 = bytes(n2, i16x8.shl(p2, 4), nibble, top), w3 = bytes(n3, i16x8.shl(p3, 4), nibble, top);
        scale = signedScale(word0, first);
        s0 = addHalf(s0, x0, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 1) s1 = addHalf(s1, x1, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 2) s2 = addHalf(s2, x2, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 3) s3 = addHalf(s3, x3, half, scale, zeros, w0, w1, w2, w3);

        // Block 2, in the same nibbles' other halves.
        w0 = bytes(i16x8.shr_u(n0, 4), p0, nibble, top), w1 = bytes(i16x8.shr_u(n1, 4), p1, nibble, top);
        w2 = bytes(i16x8.shr_u(n2, 4), p2, nibble, top), w3 = bytes(i16x8.shr_u(n3, 4), p3, nibble, top);
        scale = signedScale(word1, first);
        s0 = addHalf(s0, x0 + 2 * INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 1) s1 = addHalf(s1, x1 + 2 * INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 2) s2 = addHalf(s2, x2 + 2 * INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 3) s3 = addHalf(s3, x3 + 2 * INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);

        // Block 1.
        n0 = v128.load(nibbles, 128), n1 = v128.load(nibbles, 144), n2 = v128.load(nibbles, 160), n3 = v128.load(nibbles, 176);
        w0 = bytes(n0, i16x8.shl(p0, 2), nibble, top), w1 = bytes(n1, i16x8.shl(p1, 2), nibble, top);
        w2 = bytes(n2, i16x8.shl(p2, 2), nibble, top), w3 = bytes(n3, i16x8.shl(p3, 2), nibble, top);
        scale = signedScale(word0, third);
        s0 = addHalf(s0, x0 + INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 1) s1 = addHalf(s1, x1 + INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 2) s2 = addHalf(s2, x2 + INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 3) s3 = addHalf(s3, x3 + INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);

        // Block 3.
        w0 = bytes(i16x8.shr_u(n0, 4), i16x8.shr_u(p0, 2), nibble, top);
        w1 = bytes(i16x8.shr_u(n1, 4), i16x8.shr_u(p1, 2), nibble, top);
        w2 = bytes(i16x8.shr_u(n2, 4), i16x8.shr_u(p2, 2), nibble, top);
        w3 = bytes(i16x8.shr_u(n3, 4), i16x8.shr_u(p3, 2), nibble, top);
        scale = signedScale(word1, third);
        s0 = addHalf(s0, x0 + 3 * INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 1) s1 = addHalf(s1, x1 + 3 * INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 2) s2 = addHalf(s2, x2 + 3 * INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);
        if (rowsOf<Rows>() > 3) s3 = addHalf(s3, x3 + 3 * INT8_BLOCK, half, scale, zeros, w0, w1, w2, w3);

        word0 = i32x4.shr_u(word0, 8), word1 = i32x4.shr_u(word1, 8);
        nibbles += 64, pairs += 64;
      }
      nibbles += 128, scales += 32;
      x0 += 4 * INT8_BLOCK, x1 += 4 * INT8_BLOCK, x2 += 4 * INT8_BLOCK, x3 += 4 * INT8_BLOCK;
    }
    const d = loadF16Lanes(group + 832, magnitude, bias, knee, tiny);
    sum0 = f32x4.add(sum0, f32x4.mul(d, s0));
    if (rowsOf<Rows>() > 1) sum1 = f32x4.add(sum1, f32x4.mul(d, s1));
    if (rowsOf<Rows>() > 2) sum2 = f32x4.add(sum2, f32x4.mul(d, s2));
    if (rowsOf<Rows>() > 3) sum3 = f32x4.add(sum3, f32x4.mul(d, s3));
    group += BYTES;
  }
  v128.store(out0, sum0);
  if (rowsOf<Rows>() > 1) v128.store(out1, sum1);
  if (rowsOf<Rows>() > 2) v128.store(out2, sum2);
  if (rowsOf<Rows>() > 3) v128.store(out3, sum3);
}
