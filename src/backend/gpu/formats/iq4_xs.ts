/** IQ4_XS on the device: scales with their factor, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const iq4_xs: GpuFormat = {
  id: 'IQ4_XS',
  planes: [8, 128],
  decode: /* wgsl */ `
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  let codes = quad(row + PLANE_1 + 4u * b);
  let head = pair(row + PLANE_0 + 2u * (b >> 3u));
  let g = b & 7u;
  let scale = ((head.y >> (4u * g)) & 15u) | (((head.x >> (16u + 2u * g)) & 3u) << 4u);
  return levels32(codes, halves(head.x).x * (f32(scale) - 32.0));
}`,
};
