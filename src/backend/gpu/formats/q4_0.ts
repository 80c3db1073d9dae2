/** Q4_0 on the device: scales, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q4_0: GpuFormat = {
  id: 'Q4_0',
  planes: [2, 16],
  codes: /* wgsl */ `
fn codes32(row: u32, b: u32) -> Codes {
  let codes = quad(row + PLANE_1 + 4u * b);
  let d = halfAt(row + PLANE_0, b);
  return Codes(lowNibbles(codes), highNibbles(codes), vec2f(d), vec2f(8.0 * d));
}`,
  decode: `return scaled32(codes32(row, b), 8.0);`,
};
