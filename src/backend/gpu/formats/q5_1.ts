/** Q5_1 on the device: scales with minima, fifth bits, low bits; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitNibbles } from './reorder.ts';

export const q5_1: GpuFormat = {
  id: 'Q5_1',
  planes: [4, 4, 16],
  reorder: { 1: bitNibbles },
  loads: ['quad(row + PLANE_2 + 4u * b)', 'vec4u(word(row + PLANE_1 + b), word(row + PLANE_0 + b), 0u, 0u)'],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let codes = l[0];
  let fifth = l[1].x;
  let d = halves(l[1].y);
  let lo = lowNibbles(codes) | (bitsOf(fifth) << vec4u(4u));
  let hi = highNibbles(codes) | (bitsOf(fifth >> 4u) << vec4u(4u));
  return Codes(lo, hi, d.xx, -d.yy);
}`,
  decode: `return affine32(codes32(row, b));`,
};
