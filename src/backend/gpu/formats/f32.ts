/** F32 on the device: as it is; eight loads of four values. */

import type { GpuFormat } from '../formats.ts';

export const f32: GpuFormat = {
  id: 'F32',
  planes: [4],
  helpers: /* wgsl */ `
fn values4(row: u32, at: u32) -> vec4f {
  if (COLUMNS % 32u != 0u && at >= ROW_WORDS) { return vec4f(); }
  return bitcast<vec4f>(quad(row + at));
}`,
  decode: /* wgsl */ `let at = b * 32u;
  return array<vec4f, 8>(
    values4(row, at), values4(row, at + 4u), values4(row, at + 8u), values4(row, at + 12u),
    values4(row, at + 16u), values4(row, at + 20u), values4(row, at + 24u), values4(row, at + 28u));`,
};
