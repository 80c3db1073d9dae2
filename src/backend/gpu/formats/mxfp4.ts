/**
 * MXFP4 on the device: scales, codes; two loads for 32 columns. A device without subnormal numbers makes zeros of blocks
 * whose scale is 2^-126 or less.
 */

import type { GpuFormat } from '../formats.ts';

export const mxfp4: GpuFormat = {
  id: 'MXFP4',
  planes: [1, 16],
  decode: /* wgsl */ `
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  let codes = quad(row + PLANE_1 + 4u * b);
  let exponent = byteAt(row + PLANE_0, b);
  // Half of 2^(exponent - 127), as bits; the values of E2M1 are doubled.
  let finite = select((exponent - 1u) << 23u, 0x00200000u << exponent, exponent < 2u);
  let scale = bitcast<f32>(select(finite, 0x7fc00000u, exponent == 255u));
  return e2m1Scaled32(codes, vec2f(scale));
}`,
};
