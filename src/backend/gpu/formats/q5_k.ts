/** Q5_K on the device: scales with minima, fifth bits, low bits; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { groupScales } from './k-scales.ts';
import { bitPlanes, nibblePairs } from './reorder.ts';

export const q5_k: GpuFormat = {
  id: 'Q5_K',
  activations: 'int8',
  planes: [16, 32, 128],
  reorder: { 1: bitPlanes, 2: nibblePairs },
  helpers: groupScales,
  raw: {
    load: /* wgsl */ `
fn rawOf(row: u32, b: u32) -> Raw {
  return Raw(quad(row + PLANE_2 + 4u * b), quad(row + PLANE_0 + 4u * (b >> 3u)), word(row + PLANE_1 + b));
}`,
    codes: /* wgsl */ `
fn withFifth(raw: Raw, scale: f32, minimum: f32) -> Codes {
  let lo = lowNibbles(raw.a) | (bitsOf(raw.c) << vec4u(4u));
  let hi = highNibbles(raw.a) | (bitsOf(raw.c >> 4u) << vec4u(4u));
  return Codes(lo, hi, vec2f(scale), vec2f(minimum));
}
fn codesOf(raw: Raw, b: u32) -> Codes {
  let s = groupScales(raw.b, b & 7u);
  return withFifth(raw, s.x, s.y);
}`,
    loadPair: /* wgsl */ `
fn rawPair(row: u32, b: u32) -> RawPair {
  let at = row + PLANE_2 + 4u * b;
  let fifths = pair(row + PLANE_1 + b);
  return RawPair(Raw(quad(at), quad(row + PLANE_0 + 4u * (b >> 3u)), fifths.x), Raw(quad(at + 4u), vec4u(), fifths.y));
}`,
    codesPair: /* wgsl */ `
fn codesPair(raw: RawPair, b: u32) -> CodesPair {
  let s = groupScalesPair(raw.first.b, b & 7u);
  return CodesPair(withFifth(raw.first, s.x, s.y), withFifth(raw.second, s.z, s.w));
}`,
  },
  decode: `return affine32(codes32(row, b));`,
};
