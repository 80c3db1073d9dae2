/** NVFP4 on the device: scales, codes; two loads for 32 columns. The scale of the whole tensor is not applied here. */

import type { GpuFormat } from '../formats.ts';
import { nibbleGroups } from './reorder.ts';

export const nvfp4: GpuFormat = {
  id: 'NVFP4',
  activations: 'int8',
  planes: [4, 32],
  reorder: { 1: nibbleGroups },
  loads: ['quad(row + PLANE_1 + 4u * b)', 'vec4u(word(row + PLANE_0 + (b >> 1u)), 0u, 0u, 0u)'],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let packed = l[1].x >> ((b & 1u) * 16u);
  // Half of an E4M3 number without its sign; the values of E2M1 are doubled.
  let e4m3 = vec2u(packed, packed >> 8u) & vec2u(127u);
  let normal = (e4m3 << vec2u(20u)) + vec2u(119u << 23u);
  let tiny = bitcast<vec2u>(vec2f(e4m3) * 0.0009765625);
  let finite = select(normal, tiny, e4m3 < vec2u(8u));
  let scale = bitcast<vec2f>(select(finite, vec2u(0x7fc00000u), e4m3 == vec2u(127u)));
  return Codes(e2m1Bytes(lowNibbles(l[0])), e2m1Bytes(highNibbles(l[0])), scale, vec2f());
}`,
  decode: `return signed32(codes32(row, b));`,
};
