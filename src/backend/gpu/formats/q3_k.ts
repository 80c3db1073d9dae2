/** Q3_K on the device: third bits, low bits, scales, their factor; five loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitPairs, bitPlanes } from './reorder.ts';

export const q3_k: GpuFormat = {
  id: 'Q3_K',
  activations: 'int8',
  planes: [32, 64, 12, 2],
  reorder: { 0: bitPlanes, 1: bitPairs },
  codes: /* wgsl */ `
fn codes32(row: u32, b: u32) -> Codes {
  let codes = pair(row + PLANE_1 + 2u * b);
  let third = word(row + PLANE_0 + b);
  // Groups 2g and 2g + 1 of the block: their scales' low bits are in neighbouring bytes, and so are the high ones.
  let g = b & 7u;
  let scales = row + PLANE_2 + 3u * (b >> 3u);
  let low = word(scales + ((g >> 1u) & 1u)) >> ((g & 1u) * 16u + (g >> 2u) * 4u);
  let high = word(scales + 2u) >> ((g & 1u) * 16u + (g >> 1u) * 2u);
  let packed = (low & 0x0f0fu) | ((high & 0x0303u) << 4u);
  let scale = halfAt(row + PLANE_3, b >> 3u) * (vec2f(vec2u(packed, packed >> 8u) & vec2u(63u)) - 32.0);
  let lo = bitPairsOf(codes.x) | (bitsOf(third) << vec4u(2u));
  let hi = bitPairsOf(codes.y) | (bitsOf(third >> 4u) << vec4u(2u));
  return Codes(lo, hi, scale, 4.0 * scale);
}`,
  decode: `return scaled32(codes32(row, b), 4.0);`,
};
