/** Q5_K on the device: scales with minima, fifth bits, low bits; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { groupScales } from './k-scales.ts';
import { bitPlanes, nibblePairs } from './reorder.ts';

export const q5_k: GpuFormat = {
  id: 'Q5_K',
  activations: 'int8',
  planes: [16, 32, 128],
  reorder: { 1: bitPlanes, 2: nibblePairs },
  loads: [
    'quad(row + PLANE_2 + 4u * b)',
    'quad(row + PLANE_0 + 4u * (b >> 3u))',
    'vec4u(word(row + PLANE_1 + b), 0u, 0u, 0u)',
  ],
  codes: /* wgsl */ `${groupScales}
fn codesOf(l: array<vec4u, 3>, b: u32) -> Codes {
  let codes = l[0];
  let fifth = l[2].x;
  let s = groupScales(l[1], b & 7u);
  let lo = lowNibbles(codes) | (bitsOf(fifth) << vec4u(4u));
  let hi = highNibbles(codes) | (bitsOf(fifth >> 4u) << vec4u(4u));
  return Codes(lo, hi, s.xx, s.yy);
}`,
  decode: `return affine32(codes32(row, b));`,
};
