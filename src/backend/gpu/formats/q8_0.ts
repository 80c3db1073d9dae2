/** Q8_0 on the device: scales, codes; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q8_0: GpuFormat = {
  id: 'Q8_0',
  planes: [2, 32],
  codes: /* wgsl */ `
fn codes32(row: u32, b: u32) -> Codes {
  let d = halfAt(row + PLANE_0, b);
  let at = row + PLANE_1 + 8u * b;
  return Codes(quad(at), quad(at + 4u), vec2f(d), vec2f());
}`,
  decode: `return signed32(codes32(row, b));`,
};
