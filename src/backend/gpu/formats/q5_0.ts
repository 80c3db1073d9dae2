/** Q5_0 on the device: scales, fifth bits, low bits; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitNibbles } from './reorder.ts';

export const q5_0: GpuFormat = {
  id: 'Q5_0',
  planes: [2, 4, 16],
  reorder: { 1: bitNibbles },
  loads: ['quad(row + PLANE_2 + 4u * b)', 'vec4u(word(row + PLANE_1 + b), word(row + PLANE_0 + (b >> 1u)), 0u, 0u)'],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let codes = l[0];
  let fifth = l[1].x;
  let lo = lowNibbles(codes) | (bitsOf(fifth) << vec4u(4u));
  let hi = highNibbles(codes) | (bitsOf(fifth >> 4u) << vec4u(4u));
  let d = halves(l[1].y >> ((b & 1u) * 16u)).x;
  return Codes(lo, hi, vec2f(d), vec2f(16.0 * d));
}`,
  decode: `return scaled32(codes32(row, b), 16.0);`,
};
