/** IQ4_XS on the device: scales with their factor, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const iq4_xs: GpuFormat = {
  id: 'IQ4_XS',
  planes: [8, 128],
  codes: /* wgsl */ `
fn groupScale(row: u32, b: u32) -> f32 {
  let head = pair(row + PLANE_0 + 2u * (b >> 3u));
  let g = b & 7u;
  let scale = ((head.y >> (4u * g)) & 15u) | (((head.x >> (16u + 2u * g)) & 3u) << 4u);
  return halves(head.x).x * (f32(scale) - 32.0);
}
fn codes32(row: u32, b: u32) -> Codes {
  return levelCodes(quad(row + PLANE_1 + 4u * b), groupScale(row, b));
}`,
  decode: `return levels32(quad(row + PLANE_1 + 4u * b), groupScale(row, b));`,
};
