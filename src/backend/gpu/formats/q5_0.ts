/** Q5_0 on the device: scales, fifth bits, low bits; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitNibbles } from './reorder.ts';

export const q5_0: GpuFormat = {
  id: 'Q5_0',
  planes: [2, 4, 16],
  reorder: { 1: bitNibbles },
  decode: /* wgsl */ `
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  let codes = quad(row + PLANE_2 + 4u * b);
  let fifth = word(row + PLANE_1 + b);
  let lo = lowNibbles(codes) | (bitsOf(fifth) << vec4u(4u));
  let hi = highNibbles(codes) | (bitsOf(fifth >> 4u) << vec4u(4u));
  return scaled32(lo, hi, 16.0, vec2f(halfAt(row + PLANE_0, b)));
}`,
};
