/** IQ4_NL on the device: scales, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const iq4_nl: GpuFormat = {
  id: 'IQ4_NL',
  planes: [2, 16],
  loads: ['quad(row + PLANE_1 + 4u * b)', 'vec4u(word(row + PLANE_0 + (b >> 1u)), 0u, 0u, 0u)'],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  return levelCodes(l[0], halves(l[1].x >> ((b & 1u) * 16u)).x);
}`,
  decode: `return levels32(quad(row + PLANE_1 + 4u * b), halfAt(row + PLANE_0, b));`,
};
