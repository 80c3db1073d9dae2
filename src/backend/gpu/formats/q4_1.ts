/** Q4_1 on the device: scales with minima, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q4_1: GpuFormat = {
  id: 'Q4_1',
  planes: [4, 16],
  codes: /* wgsl */ `
fn codes32(row: u32, b: u32) -> Codes {
  let codes = quad(row + PLANE_1 + 4u * b);
  let d = halves(word(row + PLANE_0 + b));
  return Codes(lowNibbles(codes), highNibbles(codes), d.xx, -d.yy);
}`,
  decode: `return affine32(codes32(row, b));`,
};
