/** Q8_0 on the device: scales, codes; three loads for 32 columns. */

import type { GpuFormat } from '../formats.ts';

export const q8_0: GpuFormat = {
  id: 'Q8_0',
  planes: [2, 32],
  decode: /* wgsl */ `
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  let d = halfAt(row + PLANE_0, b);
  let lo = quad(row + PLANE_1 + 8u * b);
  let hi = quad(row + PLANE_1 + 8u * b + 4u);
  return array<vec4f, 8>(
    d * signedBytesOf(lo.x), d * signedBytesOf(lo.y), d * signedBytesOf(lo.z), d * signedBytesOf(lo.w),
    d * signedBytesOf(hi.x), d * signedBytesOf(hi.y), d * signedBytesOf(hi.z), d * signedBytesOf(hi.w));
}`,
};
