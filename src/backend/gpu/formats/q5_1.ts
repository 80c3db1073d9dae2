/** Q5_1 on the device: scales with minima, fifth bits, low bits; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitNibbles } from './reorder.ts';

export const q5_1: GpuFormat = {
  id: 'Q5_1',
  planes: [4, 4, 16],
  reorder: { 1: bitNibbles },
  codes: /* wgsl */ `
fn codes32(row: u32, b: u32) -> Codes {
  let codes = quad(row + PLANE_2 + 4u * b);
  let fifth = word(row + PLANE_1 + b);
  let d = halves(word(row + PLANE_0 + b));
  let lo = lowNibbles(codes) | (bitsOf(fifth) << vec4u(4u));
  let hi = highNibbles(codes) | (bitsOf(fifth >> 4u) << vec4u(4u));
  return Codes(lo, hi, d.xx, -d.yy);
}`,
  decode: `return affine32(codes32(row, b));`,
};
