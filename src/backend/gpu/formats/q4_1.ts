/** Q4_1 on the device: scales with minima, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q4_1: GpuFormat = {
  id: 'Q4_1',
  planes: [4, 16],
  loads: ['quad(row + PLANE_1 + 4u * b)', 'vec4u(word(row + PLANE_0 + b), 0u, 0u, 0u)'],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let d = halves(l[1].x);
  return Codes(lowNibbles(l[0]), highNibbles(l[0]), d.xx, -d.yy);
}`,
  decode: `return affine32(codes32(row, b));`,
};
