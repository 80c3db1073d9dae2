/** Q4_1 on the device: scales with minima, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q4_1: GpuFormat = {
  id: 'Q4_1',
  planes: [4, 16],
  decode: /* wgsl */ `
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  let codes = quad(row + PLANE_1 + 4u * b);
  let d = halves(word(row + PLANE_0 + b));
  return affine32(lowNibbles(codes), highNibbles(codes), vec2f(d.x), vec2f(-d.y));
}`,
};
