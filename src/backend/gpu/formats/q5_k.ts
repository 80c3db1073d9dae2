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
  pair: {
    loads: [
      'quad(row + PLANE_2 + 4u * b)',
      'quad(row + PLANE_2 + 4u * b + 4u)',
      'quad(row + PLANE_0 + 4u * (b >> 3u))',
      'vec4u(pair(row + PLANE_1 + b), 0u, 0u)',
    ],
    codes: /* wgsl */ `
fn withFifth(codes: vec4u, fifth: u32, s: vec2f) -> Codes {
  let lo = lowNibbles(codes) | (bitsOf(fifth) << vec4u(4u));
  let hi = highNibbles(codes) | (bitsOf(fifth >> 4u) << vec4u(4u));
  return Codes(lo, hi, s.xx, s.yy);
}
fn codesPair(l: array<vec4u, 4>, b: u32) -> CodesPair {
  let s = groupScalesPair(l[2], b & 7u);
  return CodesPair(withFifth(l[0], l[3].x, s.xy), withFifth(l[1], l[3].y, s.zw));
}`,
  },
  decode: `return affine32(codes32(row, b));`,
};
