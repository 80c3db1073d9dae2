/** F16 on the device: as it is; four loads of eight values. */

import type { GpuFormat } from '../formats.ts';

export const f16: GpuFormat = {
  id: 'F16',
  planes: [2],
  helpers: /* wgsl */ `
fn values8(row: u32, at: u32) -> vec4u {
  if (COLUMNS % 32u != 0u && at >= ROW_WORDS) { return vec4u(); }
  return quad(row + at);
}`,
  decode: /* wgsl */ `let at = b * 16u;
  let p = values8(row, at);
  let q = values8(row, at + 4u);
  let r = values8(row, at + 8u);
  let s = values8(row, at + 12u);
  return array<vec4f, 8>(
    vec4f(halves(p.x), halves(p.y)), vec4f(halves(p.z), halves(p.w)),
    vec4f(halves(q.x), halves(q.y)), vec4f(halves(q.z), halves(q.w)),
    vec4f(halves(r.x), halves(r.y)), vec4f(halves(r.z), halves(r.w)),
    vec4f(halves(s.x), halves(s.y)), vec4f(halves(s.z), halves(s.w)));`,
};
