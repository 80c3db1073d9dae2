/** Q4_K on the device: scales with minima, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { groupScales } from './k-scales.ts';
import { nibblePairs } from './reorder.ts';

export const q4_k: GpuFormat = {
  id: 'Q4_K',
  activations: 'int8',
  planes: [16, 128],
  reorder: { 1: nibblePairs },
  loads: ['quad(row + PLANE_1 + 4u * b)', 'quad(row + PLANE_0 + 4u * (b >> 3u))'],
  codes: /* wgsl */ `${groupScales}
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let s = groupScales(l[1], b & 7u);
  return Codes(lowNibbles(l[0]), highNibbles(l[0]), s.xx, s.yy);
}`,
  pair: {
    loads: [
      'quad(row + PLANE_1 + 4u * b)',
      'quad(row + PLANE_1 + 4u * b + 4u)',
      'quad(row + PLANE_0 + 4u * (b >> 3u))',
    ],
    codes: /* wgsl */ `
fn codesPair(l: array<vec4u, 3>, b: u32) -> CodesPair {
  let s = groupScalesPair(l[2], b & 7u);
  return CodesPair(
    Codes(lowNibbles(l[0]), highNibbles(l[0]), s.xx, s.yy),
    Codes(lowNibbles(l[1]), highNibbles(l[1]), s.zz, s.ww));
}`,
  },
  decode: `return affine32(codes32(row, b));`,
};
