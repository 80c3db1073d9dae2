/** Q2_K on the device: scales with minima, codes, their factors; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitPairs } from './reorder.ts';

export const q2_k: GpuFormat = {
  id: 'Q2_K',
  activations: 'int8',
  planes: [16, 64, 4],
  reorder: { 1: bitPairs },
  loads: ['vec4u(pair(row + PLANE_1 + 2u * b), word(row + PLANE_0 + (b >> 1u)), word(row + PLANE_2 + (b >> 3u)))'],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 1>, b: u32) -> Codes {
  let codes = l[0].xy;
  let packed = l[0].z >> ((b & 1u) * 16u);
  let d = halves(l[0].w);
  let scale = d.x * vec2f(vec2u(packed, packed >> 8u) & vec2u(15u));
  let minimum = d.y * vec2f(vec2u(packed >> 4u, packed >> 12u) & vec2u(15u));
  return Codes(bitPairsOf(codes.x), bitPairsOf(codes.y), scale, minimum);
}`,
  decode: `return affine32(codes32(row, b));`,
};
