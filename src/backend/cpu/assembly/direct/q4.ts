// Q4_0 and Q4_1, as `cells.ts` says, one group at a time.

import { accumulate, joinDigits } from '../dot';
import { F16_BITS, F16_EXPONENT, F16_SCALE, INT16_BLOCK, kept, loadF16Short, NIBBLE, widen } from '../lanes';
import { BYTES as Q4_0_BYTES } from '../tiles/q4_0';
import { BYTES as Q4_1_BYTES } from '../tiles/q4_1';
import { add8, rowsOf, sum8 } from './cells';

/** Σ q·x over 32 digits of x, bytes of the first 16 columns in l, of the others in h. */
// @ts-ignore: decorator
@inline
function sum32(x: usize, l0: v128, l1: v128, l2: v128, l3: v128, h0: v128, h1: v128, h2: v128, h3: v128): v128 {
  const low = add8(sum8(x, l0, l1), x + 8, l2, l3);
  const dot = add8(add8(low, x + 16, h0, h1), x + 24, h2, h3);
  return DOT_SUM ? dot : widen(dot);
}

/** `Block` is u8 for Q4_0, whose offset is -8 · scale, and u16 for Q4_1, which states it. */
export function multiplyQ4<Rows, Block>(
  group: usize, blocks: i32, x0: usize, x1: usize, x2: usize, x3: usize, out0: usize, out1: usize, out2: usize, out3: usize,
): void {
  const bits = i32x4.splat(F16_BITS);
  const exponent = i32x4.splat(F16_EXPONENT);
  const power = f32x4.splat(F16_SCALE);
  const nibble = i8x16.splat(<i8>NIBBLE);
  const eight = kept(f32x4.splat(-8));
  const stated = sizeof<Block>() == 2;
  let sum0 = f32x4.splat(0), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (let block = 0; block < blocks; block++) {
    const scale = loadF16Short(group, bits, exponent, power);
    const offset = stated ? loadF16Short(group + 8, bits, exponent, power) : f32x4.mul(scale, eight);
    const packed = group + (stated ? 16 : 8);
    const w0 = v128.load(packed), w1 = v128.load(packed, 16), w2 = v128.load(packed, 32), w3 = v128.load(packed, 48);
    const l0 = v128.and(w0, nibble), l1 = v128.and(w1, nibble), l2 = v128.and(w2, nibble), l3 = v128.and(w3, nibble);
    const h0 = v128.and(i16x8.shr_u(w0, 4), nibble), h1 = v128.and(i16x8.shr_u(w1, 4), nibble);
    const h2 = v128.and(i16x8.shr_u(w2, 4), nibble), h3 = v128.and(i16x8.shr_u(w3, 4), nibble);
    let high = sum32(x0, l0, l1, l2, l3, h0, h1, h2, h3), low = sum32(x0 + 32, l0, l1, l2, l3, h0, h1, h2, h3);
    sum0 = accumulate(sum0, joinDigits(high, low), scale, offset, v128.load(x0, 64));
    if (rowsOf<Rows>() > 1) {
      high = sum32(x1, l0, l1, l2, l3, h0, h1, h2, h3), low = sum32(x1 + 32, l0, l1, l2, l3, h0, h1, h2, h3);
      sum1 = accumulate(sum1, joinDigits(high, low), scale, offset, v128.load(x1, 64));
    }
    if (rowsOf<Rows>() > 2) {
      high = sum32(x2, l0, l1, l2, l3, h0, h1, h2, h3), low = sum32(x2 + 32, l0, l1, l2, l3, h0, h1, h2, h3);
      sum2 = accumulate(sum2, joinDigits(high, low), scale, offset, v128.load(x2, 64));
    }
    if (rowsOf<Rows>() > 3) {
      high = sum32(x3, l0, l1, l2, l3, h0, h1, h2, h3), low = sum32(x3 + 32, l0, l1, l2, l3, h0, h1, h2, h3);
      sum3 = accumulate(sum3, joinDigits(high, low), scale, offset, v128.load(x3, 64));
    }
    x0 += INT16_BLOCK, x1 += INT16_BLOCK, x2 += INT16_BLOCK, x3 += INT16_BLOCK;
    group += stated ? Q4_1_BYTES : Q4_0_BYTES;
  }
  v128.store(out0, sum0);
  if (rowsOf<Rows>() > 1) v128.store(out1, sum1);
  if (rowsOf<Rows>() > 2) v128.store(out2, sum2);
  if (rowsOf<Rows>() > 3) v128.store(out3, sum3);
}
