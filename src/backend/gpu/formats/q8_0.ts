/** Q8_0 on the device: scales, codes; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q8_0: GpuFormat = {
  id: 'Q8_0',
  planes: [2, 32],
  loads: [
    'quad(row + PLANE_1 + 8u * b)',
    'quad(row + PLANE_1 + 8u * b + 4u)',
    'vec4u(word(row + PLANE_0 + (b >> 1u)), 0u, 0u, 0u)',
  ],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 3>, b: u32) -> Codes {
  let d = halves(l[2].x >> ((b & 1u) * 16u)).x;
  return Codes(l[0], l[1], vec2f(d), vec2f());
}`,
  decode: `return signed32(codes32(row, b));`,
};
