/** Q6_K on the device: low bits, high bits, scales, their factor; four loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitPairs, nibbleQuarters } from './reorder.ts';

export const q6_k: GpuFormat = {
  id: 'Q6_K',
  activations: 'int8',
  planes: [128, 64, 16, 2],
  reorder: { 0: nibbleQuarters, 1: bitPairs },
  codes: /* wgsl */ `
fn codes32(row: u32, b: u32) -> Codes {
  let codes = quad(row + PLANE_0 + 4u * b);
  let high = pair(row + PLANE_1 + 2u * b);
  let packed = word(row + PLANE_2 + (b >> 1u)) >> ((b & 1u) * 16u);
  let scale = halfAt(row + PLANE_3, b >> 3u) * vec2f(vec2i(vec2u(packed << 24u, packed << 16u)) >> vec2u(24u));
  let lo = lowNibbles(codes) | (bitPairsOf(high.x) << vec4u(4u));
  let hi = highNibbles(codes) | (bitPairsOf(high.y) << vec4u(4u));
  return Codes(lo, hi, scale, 32.0 * scale);
}`,
  codesPair: /* wgsl */ `
fn codesPair(row: u32, b: u32) -> CodesPair {
  let at = row + PLANE_0 + 4u * b;
  let first = quad(at);
  let second = quad(at + 4u);
  let high = quad(row + PLANE_1 + 2u * b);
  let packed = word(row + PLANE_2 + (b >> 1u));
  let scale = halfAt(row + PLANE_3, b >> 3u) * vec4f(vec4i(vec4u(packed << 24u, packed << 16u, packed << 8u, packed)) >> vec4u(24u));
  return CodesPair(
    Codes(
      lowNibbles(first) | (bitPairsOf(high.x) << vec4u(4u)), highNibbles(first) | (bitPairsOf(high.y) << vec4u(4u)),
      scale.xy, 32.0 * scale.xy),
    Codes(
      lowNibbles(second) | (bitPairsOf(high.z) << vec4u(4u)), highNibbles(second) | (bitPairsOf(high.w) << vec4u(4u)),
      scale.zw, 32.0 * scale.zw));
}`,
  decode: `return scaled32(codes32(row, b), 32.0);`,
};
