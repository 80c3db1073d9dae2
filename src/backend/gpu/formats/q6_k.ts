/** Q6_K on the device: low bits, high bits, scales, their factor; four loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitPairs, nibbleQuarters } from './reorder.ts';

export const q6_k: GpuFormat = {
  id: 'Q6_K',
  activations: 'int8',
  planes: [128, 64, 16, 2],
  reorder: { 0: nibbleQuarters, 1: bitPairs },
  loads: [
    'quad(row + PLANE_0 + 4u * b)',
    'vec4u(pair(row + PLANE_1 + 2u * b), word(row + PLANE_2 + (b >> 1u)), word(row + PLANE_3 + (b >> 4u)))',
  ],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let codes = l[0];
  let high = l[1].xy;
  let packed = l[1].z >> ((b & 1u) * 16u);
  let scale = halves(l[1].w >> ((b & 8u) * 2u)).x * vec2f(vec2i(vec2u(packed << 24u, packed << 16u)) >> vec2u(24u));
  let lo = lowNibbles(codes) | (bitPairsOf(high.x) << vec4u(4u));
  let hi = highNibbles(codes) | (bitPairsOf(high.y) << vec4u(4u));
  return Codes(lo, hi, scale, 32.0 * scale);
}`,
  pair: {
    loads: [
      'quad(row + PLANE_0 + 4u * b)',
      'quad(row + PLANE_0 + 4u * b + 4u)',
      'quad(row + PLANE_1 + 2u * b)',
      'vec4u(word(row + PLANE_2 + (b >> 1u)), word(row + PLANE_3 + (b >> 4u)), 0u, 0u)',
    ],
    codes: /* wgsl */ `
fn withHigh(codes: vec4u, high: vec2u, scale: vec2f) -> Codes {
  let lo = lowNibbles(codes) | (bitPairsOf(high.x) << vec4u(4u));
  let hi = highNibbles(codes) | (bitPairsOf(high.y) << vec4u(4u));
  return Codes(lo, hi, scale, 32.0 * scale);
}
fn codesPair(l: array<vec4u, 4>, b: u32) -> CodesPair {
  let packed = l[3].x;
  let d = halves(l[3].y >> ((b & 8u) * 2u)).x;
  let scale = d * vec4f(vec4i(vec4u(packed << 24u, packed << 16u, packed << 8u, packed)) >> vec4u(24u));
  return CodesPair(withHigh(l[0], l[2].xy, scale.xy), withHigh(l[1], l[2].zw, scale.zw));
}`,
  },
  decode: `return scaled32(codes32(row, b), 32.0);`,
};
