/** IQ4_NL on the device: scales, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const iq4_nl: GpuFormat = {
  id: 'IQ4_NL',
  planes: [2, 16],
  decode: /* wgsl */ `
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  return levels32(quad(row + PLANE_1 + 4u * b), halfAt(row + PLANE_0, b));
}`,
};
