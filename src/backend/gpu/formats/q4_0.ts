/** Q4_0 on the device: scales, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q4_0: GpuFormat = {
  id: 'Q4_0',
  planes: [2, 16],
  decode: /* wgsl */ `
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  let codes = quad(row + PLANE_1 + 4u * b);
  return scaled32(lowNibbles(codes), highNibbles(codes), 8.0, vec2f(halfAt(row + PLANE_0, b)));
}`,
};
