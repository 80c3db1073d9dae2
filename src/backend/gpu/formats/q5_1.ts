/** Q5_1 on the device: scales with minima, fifth bits, low bits; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitNibbles } from './reorder.ts';

export const q5_1: GpuFormat = {
  id: 'Q5_1',
  planes: [4, 4, 16],
  reorder: { 1: bitNibbles },
  decode: /* wgsl */ `
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  let codes = quad(row + PLANE_2 + 4u * b);
  let fifth = word(row + PLANE_1 + b);
  let d = halves(word(row + PLANE_0 + b));
  let lo = lowNibbles(codes) | (bitsOf(fifth) << vec4u(4u));
  let hi = highNibbles(codes) | (bitsOf(fifth >> 4u) << vec4u(4u));
  return affine32(lo, hi, vec2f(d.x), vec2f(-d.y));
}`,
};
