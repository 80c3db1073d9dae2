/**
 * MXFP4 on the device: scales, codes; two loads for 32 columns. A device without subnormal numbers makes zeros of blocks
 * whose scale is 2^-126 or less.
 */

import type { GpuFormat } from '../formats.ts';

export const mxfp4: GpuFormat = {
  id: 'MXFP4',
  activations: 'int8',
  planes: [1, 16],
  loads: ['quad(row + PLANE_1 + 4u * b)', 'vec4u(word(row + PLANE_0 + (b >> 2u)), 0u, 0u, 0u)'],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let exponent = (l[1].x >> ((b & 3u) * 8u)) & 255u;
  // Half of 2^(exponent - 127), as bits; the values of E2M1 are doubled.
  let finite = select((exponent - 1u) << 23u, 0x00200000u << exponent, exponent < 2u);
  let scale = bitcast<f32>(select(finite, 0x7fc00000u, exponent == 255u));
  return Codes(e2m1Bytes(lowNibbles(l[0])), e2m1Bytes(highNibbles(l[0])), vec2f(scale), vec2f());
}`,
  decode: `return signed32(codes32(row, b));`,
};
