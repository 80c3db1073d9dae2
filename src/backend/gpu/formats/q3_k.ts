/** Q3_K on the device: third bits, low bits, scales, their factor; five loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitPairs, bitPlanes } from './reorder.ts';

export const q3_k: GpuFormat = {
  id: 'Q3_K',
  activations: 'int8',
  planes: [32, 64, 12, 2],
  reorder: { 0: bitPlanes, 1: bitPairs },
  loads: [
    'vec4u(pair(row + PLANE_1 + 2u * b), word(row + PLANE_0 + b), word(row + PLANE_3 + (b >> 4u)))',
    'vec4u(word(row + PLANE_2 + 3u * (b >> 3u) + ((b >> 1u) & 1u)), word(row + PLANE_2 + 3u * (b >> 3u) + 2u), 0u, 0u)',
  ],
  codes: /* wgsl */ `
fn codesOf(l: array<vec4u, 2>, b: u32) -> Codes {
  let codes = l[0].xy;
  let third = l[0].z;
  // Groups 2g and 2g + 1 of the block: their scales' low bits are in neighbouring bytes, and so are the high ones.
  let g = b & 7u;
  let low = l[1].x >> ((g & 1u) * 16u + (g >> 2u) * 4u);
  let high = l[1].y >> ((g & 1u) * 16u + (g >> 1u) * 2u);
  let packed = (low & 0x0f0fu) | ((high & 0x0303u) << 4u);
  let scale = halves(l[0].w >> ((b & 8u) * 2u)).x * (vec2f(vec2u(packed, packed >> 8u) & vec2u(63u)) - 32.0);
  let lo = bitPairsOf(codes.x) | (bitsOf(third) << vec4u(2u));
  let hi = bitPairsOf(codes.y) | (bitsOf(third >> 4u) << vec4u(2u));
  return Codes(lo, hi, scale, 4.0 * scale);
}`,
  decode: `return scaled32(codes32(row, b), 4.0);`,
};
