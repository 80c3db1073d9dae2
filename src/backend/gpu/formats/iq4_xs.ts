/** IQ4_XS on the device: scales with their factor, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const iq4_xs: GpuFormat = {
  id: 'IQ4_XS',
  planes: [8, 128],
  loads: ['quad(row + PLANE_1 + 4u * b)', 'vec4u(pair(row + PLANE_0 + 2u * (b >> 3u)), 0u, 0u)'],
  helpers: /* wgsl */ `
fn groupScale(head: vec2u, g: u32) -> f32 {
  let scale = ((head.y >> (4u * g)) & 15u) | (((head.x >> (16u + 2u * g)) & 3u) << 4u);
  return halves(head.x).x * (f32(scale) - 32.0);
}`,
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes { return levelCodes(l[0], groupScale(l[1].xy, b & 7u)); }`,
  decode: `return levels32(quad(row + PLANE_1 + 4u * b), groupScale(pair(row + PLANE_0 + 2u * (b >> 3u)), b & 7u));`,
};
