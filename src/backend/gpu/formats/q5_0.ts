/** Q5_0 on the device: scales, fifth bits, low bits; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitNibbles } from './reorder.ts';

export const q5_0: GpuFormat = {
  id: 'Q5_0',
  planes: [2, 4, 16],
  reorder: { 1: bitNibbles },
  codes: /* wgsl */ `
fn codes32(row: u32, b: u32) -> Codes {
  let codes = quad(row + PLANE_2 + 4u * b);
  let fifth = word(row + PLANE_1 + b);
  let lo = lowNibbles(codes) | (bitsOf(fifth) << vec4u(4u));
  let hi = highNibbles(codes) | (bitsOf(fifth >> 4u) << vec4u(4u));
  let d = halfAt(row + PLANE_0, b);
  return Codes(lo, hi, vec2f(d), vec2f(16.0 * d));
}`,
  decode: `return scaled32(codes32(row, b), 16.0);`,
};
