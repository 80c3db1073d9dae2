/** Q6_K on the device: low bits, high bits, scales, their factor; four loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitPairs, nibbleQuarters } from './reorder.ts';

export const q6_k: GpuFormat = {
  id: 'Q6_K',
  activations: 'int8',
  planes: [128, 64, 16, 2],
  reorder: { 0: nibbleQuarters, 1: bitPairs },
  raw: {
    load: /* wgsl */ `
fn rawOf(row: u32, b: u32) -> Raw {
  let high = pair(row + PLANE_1 + 2u * b);
  let scales = vec2u(word(row + PLANE_2 + (b >> 1u)), word(row + PLANE_3 + (b >> 4u)));
  return Raw(quad(row + PLANE_0 + 4u * b), vec4u(high, scales), 0u);
}`,
    codes: /* wgsl */ `
fn withHigh(codes: vec4u, high: vec2u, scale: vec2f) -> Codes {
  let lo = lowNibbles(codes) | (bitPairsOf(high.x) << vec4u(4u));
  let hi = highNibbles(codes) | (bitPairsOf(high.y) << vec4u(4u));
  return Codes(lo, hi, scale, 32.0 * scale);
}
fn codesOf(raw: Raw, b: u32) -> Codes {
  let packed = raw.b.z >> ((b & 1u) * 16u);
  let d = halves(raw.b.w >> (((b >> 3u) & 1u) * 16u)).x;
  return withHigh(raw.a, raw.b.xy, d * vec2f(vec2i(vec2u(packed << 24u, packed << 16u)) >> vec2u(24u)));
}`,
    loadPair: /* wgsl */ `
fn rawPair(row: u32, b: u32) -> RawPair {
  let at = row + PLANE_0 + 4u * b;
  return RawPair(
    Raw(quad(at), quad(row + PLANE_1 + 2u * b), word(row + PLANE_2 + (b >> 1u))),
    Raw(quad(at + 4u), vec4u(), word(row + PLANE_3 + (b >> 4u))));
}`,
    codesPair: /* wgsl */ `
fn codesPair(raw: RawPair, b: u32) -> CodesPair {
  let packed = raw.first.c;
  let d = halves(raw.second.c >> (((b >> 3u) & 1u) * 16u)).x;
  let scale = d * vec4f(vec4i(vec4u(packed << 24u, packed << 16u, packed << 8u, packed)) >> vec4u(24u));
  return CodesPair(
    withHigh(raw.first.a, raw.first.b.xy, scale.xy), withHigh(raw.second.a, raw.first.b.zw, scale.zw));
}`,
  },
  decode: `return scaled32(codes32(row, b), 32.0);`,
};
