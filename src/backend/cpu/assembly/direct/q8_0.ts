// Q8_0, as `cells.ts` says, one group at a time.

import { accumulateScaled } from '../dot';
import { F16_BITS, F16_EXPONENT, F16_SCALE, INT16_BLOCK, loadF16Short } from '../lanes';
import { BYTES } from '../tiles/q8_0';
import { rowsOf } from './cells';

/** sum + Σ q·x of 8 columns of two rows, two i32 a row; `first` and `second` hold four columns of each. */
// @ts-ignore: decorator
@inline
function add8(sum: v128, x: usize, first: v128, second: v128): v128 {
  const half = i32x4.add(sum, i32x4.dot_i16x8_s(v128.load64_splat(x), first));
  return i32x4.add(half, i32x4.dot_i16x8_s(v128.load64_splat(x, 8), second));
}

/** One i32 a row, of what {@link add8} has of rows 0 and 1, and of rows 2 and 3. */
// @ts-ignore: decorator
@inline
function join(low: v128, high: v128): v128 {
  return i32x4.add(i32x4.shuffle(low, high, 0, 2, 4, 6), i32x4.shuffle(low, high, 1, 3, 5, 7));
}

export function multiplyQ8_0<Rows>(
  group: usize, blocks: i32, x0: usize, x1: usize, x2: usize, x3: usize, out0: usize, out1: usize, out2: usize, out3: usize,
): void {
  const bits = i32x4.splat(F16_BITS);
  const exponent = i32x4.splat(F16_EXPONENT);
  const power = f32x4.splat(F16_SCALE);
  const zero = f32x4.splat(0);
  let sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero;
  for (let block = 0; block < blocks; block++) {
    // Rows 0 and 1 of the group in l, rows 2 and 3 in h.
    let l0 = zero, l1 = zero, l2 = zero, l3 = zero, h0 = zero, h1 = zero, h2 = zero, h3 = zero;

    let v0 = v128.load_ext<i8>(group, 8), v1 = v128.load_ext<i8>(group, 24);
    let w0 = v128.load_ext<i8>(group, 16), w1 = v128.load_ext<i8>(group, 32);
    l0 = add8(l0, x0, v0, v1), h0 = add8(h0, x0, w0, w1);
    if (rowsOf<Rows>() > 1) l1 = add8(l1, x1, v0, v1), h1 = add8(h1, x1, w0, w1);
    if (rowsOf<Rows>() > 2) l2 = add8(l2, x2, v0, v1), h2 = add8(h2, x2, w0, w1);
    if (rowsOf<Rows>() > 3) l3 = add8(l3, x3, v0, v1), h3 = add8(h3, x3, w0, w1);

    v0 = v128.load_ext<i8>(group, 40), v1 = v128.load_ext<i8>(group, 56);
    w0 = v128.load_ext<i8>(group, 48), w1 = v128.load_ext<i8>(group, 64);
    l0 = add8(l0, x0 + 16, v0, v1), h0 = add8(h0, x0 + 16, w0, w1);
    if (rowsOf<Rows>() > 1) l1 = add8(l1, x1 + 16, v0, v1), h1 = add8(h1, x1 + 16, w0, w1);
    if (rowsOf<Rows>() > 2) l2 = add8(l2, x2 + 16, v0, v1), h2 = add8(h2, x2 + 16, w0, w1);
    if (rowsOf<Rows>() > 3) l3 = add8(l3, x3 + 16, v0, v1), h3 = add8(h3, x3 + 16, w0, w1);

    v0 = v128.load_ext<i8>(group, 72), v1 = v128.load_ext<i8>(group, 88);
    w0 = v128.load_ext<i8>(group, 80), w1 = v128.load_ext<i8>(group, 96);
    l0 = add8(l0, x0 + 32, v0, v1), h0 = add8(h0, x0 + 32, w0, w1);
    if (rowsOf<Rows>() > 1) l1 = add8(l1, x1 + 32, v0, v1), h1 = add8(h1, x1 + 32, w0, w1);
    if (rowsOf<Rows>() > 2) l2 = add8(l2, x2 + 32, v0, v1), h2 = add8(h2, x2 + 32, w0, w1);
    if (rowsOf<Rows>() > 3) l3 = add8(l3, x3 + 32, v0, v1), h3 = add8(h3, x3 + 32, w0, w1);

    v0 = v128.load_ext<i8>(group, 104), v1 = v128.load_ext<i8>(group, 120);
    w0 = v128.load_ext<i8>(group, 112), w1 = v128.load_ext<i8>(group, 128);
    l0 = add8(l0, x0 + 48, v0, v1), h0 = add8(h0, x0 + 48, w0, w1);
    if (rowsOf<Rows>() > 1) l1 = add8(l1, x1 + 48, v0, v1), h1 = add8(h1, x1 + 48, w0, w1);
    if (rowsOf<Rows>() > 2) l2 = add8(l2, x2 + 48, v0, v1), h2 = add8(h2, x2 + 48, w0, w1);
    if (rowsOf<Rows>() > 3) l3 = add8(l3, x3 + 48, v0, v1), h3 = add8(h3, x3 + 48, w0, w1);

    const scale = loadF16Short(group, bits, exponent, power);
    sum0 = accumulateScaled(sum0, join(l0, h0), scale, x0);
    if (rowsOf<Rows>() > 1) sum1 = accumulateScaled(sum1, join(l1, h1), scale, x1);
    if (rowsOf<Rows>() > 2) sum2 = accumulateScaled(sum2, join(l2, h2), scale, x2);
    if (rowsOf<Rows>() > 3) sum3 = accumulateScaled(sum3, join(l3, h3), scale, x3);
    x0 += INT16_BLOCK, x1 += INT16_BLOCK, x2 += INT16_BLOCK, x3 += INT16_BLOCK;
    group += BYTES;
  }
  v128.store(out0, sum0);
  if (rowsOf<Rows>() > 1) v128.store(out1, sum1);
  if (rowsOf<Rows>() > 2) v128.store(out2, sum2);
  if (rowsOf<Rows>() > 3) v128.store(out3, sum3);
}
