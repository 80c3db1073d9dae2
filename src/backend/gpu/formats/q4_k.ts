/** Q4_K on the device: scales with minima, codes; two loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { groupScales } from './k-scales.ts';
import { nibblePairs } from './reorder.ts';

export const q4_k: GpuFormat = {
  id: 'Q4_K',
  activations: 'int8',
  planes: [16, 128],
  reorder: { 1: nibblePairs },
  helpers: groupScales,
  raw: {
    load: /* wgsl */ `
fn rawOf(row: u32, b: u32) -> Raw {
  return Raw(quad(row + PLANE_1 + 4u * b), quad(row + PLANE_0 + 4u * (b >> 3u)), 0u);
}`,
    codes: /* wgsl */ `
fn codesOf(raw: Raw, b: u32) -> Codes {
  let s = groupScales(raw.b, b & 7u);
  return Codes(lowNibbles(raw.a), highNibbles(raw.a), s.xx, s.yy);
}`,
    loadPair: /* wgsl */ `
fn rawPair(row: u32, b: u32) -> RawPair {
  let at = row + PLANE_1 + 4u * b;
  return RawPair(Raw(quad(at), quad(row + PLANE_0 + 4u * (b >> 3u)), 0u), Raw(quad(at + 4u), vec4u(), 0u));
}`,
    codesPair: /* wgsl */ `
fn codesPair(raw: RawPair, b: u32) -> CodesPair {
  let s = groupScalesPair(raw.first.b, b & 7u);
  return CodesPair(
    Codes(lowNibbles(raw.first.a), highNibbles(raw.first.a), s.xx, s.yy),
    Codes(lowNibbles(raw.second.a), highNibbles(raw.second.a), s.zz, s.ww));
}`,
  },
  decode: `return affine32(codes32(row, b));`,
};
