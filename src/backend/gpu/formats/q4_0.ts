/** Q4_0 on the device: scales, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q4_0: GpuFormat = {
  id: 'Q4_0',
  planes: [2, 16],
  loads: ['quad(row + PLANE_1 + 4u * b)', 'vec4u(word(row + PLANE_0 + (b >> 1u)), 0u, 0u, 0u)'],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let d = halves(l[1].x >> ((b & 1u) * 16u)).x;
  return Codes(lowNibbles(l[0]), highNibbles(l[0]), vec2f(d), vec2f(8.0 * d));
}`,
  decode: `return scaled32(codes32(row, b), 8.0);`,
};
