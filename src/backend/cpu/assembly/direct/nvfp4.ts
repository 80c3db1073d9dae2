// NVFP4, as `cells.ts` says, one group at a time. 32 columns add a · Σ scale·Σ(q - 12)·x over their two halves, a being the
// activations' factor.

import { FACTOR, HALF_SUMS, INT8_BLOCK, kept, NIBBLE } from '../lanes';
import { E2M1_ZERO, e2m1Values } from '../tiles/mxfp4';
import { BYTES, halfScale } from '../tiles/nvfp4';
import { byteOfLane } from '../tiles/tile';
import { add8, lessZero, pick, rowsOf, sum8, wholeOf } from './cells';

/** scale·Σ(q - zero)·x of half of the activation block `x`, whose sums are at `sums`. */
// @ts-ignore: decorator
@inline
function half(x: usize, sums: usize, scale: v128, zeros: v128, w0: v128, w1: v128, w2: v128, w3: v128): v128 {
  const dot = add8(sum8(x, w0, w1), x + 8, w2, w3);
  return f32x4.mul(wholeOf(lessZero(dot, v128.load32_splat(sums), zeros)), scale);
}

/** Of `blocks` blocks of 64 columns. */
export function multiplyNvfp4<Rows>(
  group: usize, blocks: i32, x0: usize, x1: usize, x2: usize, x3: usize, out0: usize, out1: usize, out2: usize, out3: usize,
): void {
  const nibble = i8x16.splat(<i8>NIBBLE);
  const zeros = kept(i16x8.splat(E2M1_ZERO));
  const values = kept(e2m1Values());
  let sum0 = f32x4.splat(0), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (let block = 0; block < blocks; block++) {
    let scales = v128.load(group), at = group + 16;
    for (let part = 0; part < 2; part++) {
      let p0 = v128.load(at), p1 = v128.load(at, 16);
      let w0 = pick(values, v128.and(p0, nibble)), w1 = pick(values, v128.and(p1, nibble));
      let w2 = pick(values, v128.and(i16x8.shr_u(p0, 4), nibble)), w3 = pick(values, v128.and(i16x8.shr_u(p1, 4), nibble));
      let scale = halfScale(byteOfLane(scales, 0));
      let s0 = half(x0, x0 + HALF_SUMS, scale, zeros, w0, w1, w2, w3), s1 = s0, s2 = s0, s3 = s0;
      if (rowsOf<Rows>() > 1) s1 = half(x1, x1 + HALF_SUMS, scale, zeros, w0, w1, w2, w3);
      if (rowsOf<Rows>() > 2) s2 = half(x2, x2 + HALF_SUMS, scale, zeros, w0, w1, w2, w3);
      if (rowsOf<Rows>() > 3) s3 = half(x3, x3 + HALF_SUMS, scale, zeros, w0, w1, w2, w3);

      p0 = v128.load(at, 32), p1 = v128.load(at, 48);
      w0 = pick(values, v128.and(p0, nibble)), w1 = pick(values, v128.and(p1, nibble));
      w2 = pick(values, v128.and(i16x8.shr_u(p0, 4), nibble)), w3 = pick(values, v128.and(i16x8.shr_u(p1, 4), nibble));
      scale = halfScale(byteOfLane(scales, 1));
      s0 = f32x4.add(s0, half(x0 + 16, x0 + HALF_SUMS + 4, scale, zeros, w0, w1, w2, w3));
      if (rowsOf<Rows>() > 1) s1 = f32x4.add(s1, half(x1 + 16, x1 + HALF_SUMS + 4, scale, zeros, w0, w1, w2, w3));
      if (rowsOf<Rows>() > 2) s2 = f32x4.add(s2, half(x2 + 16, x2 + HALF_SUMS + 4, scale, zeros, w0, w1, w2, w3));
      if (rowsOf<Rows>() > 3) s3 = f32x4.add(s3, half(x3 + 16, x3 + HALF_SUMS + 4, scale, zeros, w0, w1, w2, w3));

      sum0 = f32x4.add(sum0, f32x4.mul(s0, v128.load32_splat(x0, FACTOR)));
      if (rowsOf<Rows>() > 1) sum1 = f32x4.add(sum1, f32x4.mul(s1, v128.load32_splat(x1, FACTOR)));
      if (rowsOf<Rows>() > 2) sum2 = f32x4.add(sum2, f32x4.mul(s2, v128.load32_splat(x2, FACTOR)));
      if (rowsOf<Rows>() > 3) sum3 = f32x4.add(sum3, f32x4.mul(s3, v128.load32_splat(x3, FACTOR)));
      scales = i32x4.shr_u(scales, 16);
      at += 64;
      x0 += INT8_BLOCK, x1 += INT8_BLOCK, x2 += INT8_BLOCK, x3 += INT8_BLOCK;
    }
    group += BYTES;
  }
  v128.store(out0, sum0);
  if (rowsOf<Rows>() > 1) v128.store(out1, sum1);
  if (rowsOf<Rows>() > 2) v128.store(out2, sum2);
  if (rowsOf<Rows>() > 3) v128.store(out3, sum3);
}
