/** BF16 on the device: as it is; four loads of eight values. */

import type { GpuFormat } from '../formats.ts';

export const bf16: GpuFormat = {
  id: 'BF16',
  planes: [2],
  helpers: /* wgsl */ `
fn values8(row: u32, at: u32) -> vec4u {
  if (COLUMNS % 32u != 0u && at >= ROW_WORDS) { return vec4u(); }
  return quad(row + at);
}
fn upperHalves(a: u32, b: u32) -> vec4f {
  return bitcast<vec4f>(vec4u(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}`,
  decode: /* wgsl */ `let at = b * 16u;
  let p = values8(row, at);
  let q = values8(row, at + 4u);
  let r = values8(row, at + 8u);
  let s = values8(row, at + 12u);
  return array<vec4f, 8>(
    upperHalves(p.x, p.y), upperHalves(p.z, p.w), upperHalves(q.x, q.y), upperHalves(q.z, q.w),
    upperHalves(r.x, r.y), upperHalves(r.z, r.w), upperHalves(s.x, s.y), upperHalves(s.z, s.w));`,
};
