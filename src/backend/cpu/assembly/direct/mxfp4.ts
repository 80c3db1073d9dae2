// MXFP4, as `cells.ts` says, one group at a time. A block of 32 columns adds a · scale·Σ(q - 12)·x, a being the activations'
// factor.

import { FACTOR, HALF_SUMS, INT8_BLOCK, kept, NIBBLE } from '../lanes';
import { BYTES, E2M1_ZERO, e2m1Values, scaleOf } from '../tiles/mxfp4';
import { add8, lessZero, pick, rowsOf, sum8, wholeOf } from './cells';

/** sum + a · scale·Σ(q - zero)·x; `l` are the bytes of the first 16 columns, `h` those of the others. */
// @ts-ignore: decorator
@inline
function addBlock(
  sum: v128, x: usize, scale: v128, zeros: v128,
  l0: v128, l1: v128, l2: v128, l3: v128, h0: v128, h1: v128, h2: v128, h3: v128,
): v128 {
  const low = add8(sum8(x, l0, l1), x + 8, l2, l3);
  const dot = add8(add8(low, x + 16, h0, h1), x + 24, h2, h3);
  const sums = i16x8.add(v128.load32_splat(x, HALF_SUMS), v128.load32_splat(x, HALF_SUMS + 4));
  return f32x4.add(sum, f32x4.mul(f32x4.mul(wholeOf(lessZero(dot, sums, zeros)), scale), v128.load32_splat(x, FACTOR)));
}

export function multiplyMxfp4<Rows>(
  group: usize, blocks: i32, x0: usize, x1: usize, x2: usize, x3: usize, out0: usize, out1: usize, out2: usize, out3: usize,
): void {
  const nibble = i8x16.splat(<i8>NIBBLE);
  const zeros = kept(i16x8.splat(E2M1_ZERO));
  const values = kept(e2m1Values());
  let sum0 = f32x4.splat(0), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (let block = 0; block < blocks; block++) {
    const w0 = v128.load(group, 4), w1 = v128.load(group, 20), w2 = v128.load(group, 36), w3 = v128.load(group, 52);
    const l0 = pick(values, v128.and(w0, nibble)), l1 = pick(values, v128.and(w1, nibble));
    const l2 = pick(values, v128.and(w2, nibble)), l3 = pick(values, v128.and(w3, nibble));
    const h0 = pick(values, v128.and(i16x8.shr_u(w0, 4), nibble)), h1 = pick(values, v128.and(i16x8.shr_u(w1, 4), nibble));
    const h2 = pick(values, v128.and(i16x8.shr_u(w2, 4), nibble)), h3 = pick(values, v128.and(i16x8.shr_u(w3, 4), nibble));
    const scale = scaleOf(group);
    sum0 = addBlock(sum0, x0, scale, zeros, l0, l1, l2, l3, h0, h1, h2, h3);
    if (rowsOf<Rows>() > 1) sum1 = addBlock(sum1, x1, scale, zeros, l0, l1, l2, l3, h0, h1, h2, h3);
    if (rowsOf<Rows>() > 2) sum2 = addBlock(sum2, x2, scale, zeros, l0, l1, l2, l3, h0, h1, h2, h3);
    if (rowsOf<Rows>() > 3) sum3 = addBlock(sum3, x3, scale, zeros, l0, l1, l2, l3, h0, h1, h2, h3);
    x0 += INT8_BLOCK, x1 += INT8_BLOCK, x2 += INT8_BLOCK, x3 += INT8_BLOCK;
    group += BYTES;
  }
  v128.store(out0, sum0);
  if (rowsOf<Rows>() > 1) v128.store(out1, sum1);
  if (rowsOf<Rows>() > 2) v128.store(out2, sum2);
  if (rowsOf<Rows>() > 3) v128.store(out3, sum3);
}
