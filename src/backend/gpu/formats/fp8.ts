/** FP8 on the device, in blocks of 32 or of 128: scales, values; three loads for 32 columns. */

import type { FormatId } from '../../../quant/index.ts';
import type { GpuFormat } from '../formats.ts';

export function fp8Format(id: FormatId, block: 32 | 128): GpuFormat {
  return {
    id,
    planes: [4, block],
    helpers: /* wgsl */ `
/** The four E4M3 numbers of a word; subnormal ones too, and 0x7f and 0xff are NaN. */
fn e4m3Of(word: u32) -> vec4f {
  let bytes = vec4u(word, word >> 8u, word >> 16u, word >> 24u);
  let size = bytes & vec4u(127u);
  let normal = (size << vec4u(20u)) + vec4u(120u << 23u);
  let tiny = bitcast<vec4u>(vec4f(size) * 0.001953125);
  let finite = select(normal, tiny, size < vec4u(8u));
  let all = select(finite, vec4u(0x7fc00000u), size == vec4u(127u));
  return bitcast<vec4f>(all | ((bytes & vec4u(128u)) << vec4u(24u)));
}`,
    decode: /* wgsl */ `let scale = bitcast<f32>(word(row + PLANE_0 + ${block === 32 ? 'b' : '(b >> 2u)'}));
  let p = quad(row + PLANE_1 + 8u * b);
  let q = quad(row + PLANE_1 + 8u * b + 4u);
  return array<vec4f, 8>(
    scale * e4m3Of(p.x), scale * e4m3Of(p.y), scale * e4m3Of(p.z), scale * e4m3Of(p.w),
    scale * e4m3Of(q.x), scale * e4m3Of(q.y), scale * e4m3Of(q.z), scale * e4m3Of(q.w));`,
  };
}
