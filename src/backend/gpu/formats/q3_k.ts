/** Q3_K on the device: third bits, low bits, scales, their factor; five loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';
import { bitPairs, bitPlanes } from './reorder.ts';

export const q3_k: GpuFormat = {
  id: 'Q3_K',
  activations: 'int8',
  planes: [32, 64, 12, 2],
  reorder: { 0: bitPlanes, 1: bitPairs },
  raw: {
    load: /* wgsl */ `
fn rawOf(row: u32, b: u32) -> Raw {
  let codes = pair(row + PLANE_1 + 2u * b);
  // Groups 2g and 2g + 1 of the block: their scales' low bits are in neighbouring bytes, and so are the high ones.
  let scales = row + PLANE_2 + 3u * (b >> 3u);
  let half = word(row + PLANE_3 + (b >> 4u));
  return Raw(vec4u(codes, word(row + PLANE_0 + b), word(scales + ((b >> 1u) & 1u))), vec4u(word(scales + 2u), half, 0u, 0u), 0u);
}`,
    codes: /* wgsl */ `
fn codesOf(raw: Raw, b: u32) -> Codes {
  let third = raw.a.z;
  let g = b & 7u;
  let low = raw.a.w >> ((g & 1u) * 16u + (g >> 2u) * 4u);
  let high = raw.b.x >> ((g & 1u) * 16u + (g >> 1u) * 2u);
  let packed = (low & 0x0f0fu) | ((high & 0x0303u) << 4u);
  let d = halves(raw.b.y >> (((b >> 3u) & 1u) * 16u)).x;
  let scale = d * (vec2f(vec2u(packed, packed >> 8u) & vec2u(63u)) - 32.0);
  let lo = bitPairsOf(raw.a.x) | (bitsOf(third) << vec4u(2u));
  let hi = bitPairsOf(raw.a.y) | (bitsOf(third >> 4u) << vec4u(2u));
  return Codes(lo, hi, scale, 4.0 * scale);
}`,
  },
  decode: `return scaled32(codes32(row, b), 4.0);`,
};
