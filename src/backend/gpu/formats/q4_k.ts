/** Q4_K on the device: scales with minima, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { groupScales } from './k-scales.ts';
import { nibblePairs } from './reorder.ts';

export const q4_k: GpuFormat = {
  id: 'Q4_K',
  activations: 'int8',
  planes: [16, 128],
  reorder: { 1: nibblePairs },
  codes: /* wgsl */ `${groupScales}
fn codes32(row: u32, b: u32) -> Codes {
  let codes = quad(row + PLANE_1 + 4u * b);
  let s = groupScales(quad(row + PLANE_0 + 4u * (b >> 3u)), b & 7u);
  return Codes(lowNibbles(codes), highNibbles(codes), s.xx, s.yy);
}`,
  codesPair: /* wgsl */ `
fn codesPair(row: u32, b: u32) -> CodesPair {
  let at = row + PLANE_1 + 4u * b;
  let first = quad(at);
  let second = quad(at + 4u);
  let s = groupScalesPair(quad(row + PLANE_0 + 4u * (b >> 3u)), b & 7u);
  return CodesPair(
    Codes(lowNibbles(first), highNibbles(first), s.xx, s.yy),
    Codes(lowNibbles(second), highNibbles(second), s.zz, s.ww));
}`,
  decode: `return affine32(codes32(row, b));`,
};
