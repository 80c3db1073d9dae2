/** IQ4_NL on the device: scales, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const iq4_nl: GpuFormat = {
  id: 'IQ4_NL',
  planes: [2, 16],
  codes: /* wgsl */ `
fn codes32(row: u32, b: u32) -> Codes {
  return levelCodes(quad(row + PLANE_1 + 4u * b), halfAt(row + PLANE_0, b));
}`,
  decode: `return levels32(quad(row + PLANE_1 + 4u * b), halfAt(row + PLANE_0, b));`,
};
