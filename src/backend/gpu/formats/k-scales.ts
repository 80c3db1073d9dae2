/** The scales and minima of Q4_K and Q5_K on the device: 16 bytes a block, one load (`quant/k-scales.ts`). */

/** WGSL of `fn groupScales(head: vec4u, g: u32) -> vec2f`: scale and minimum of group g of the block that `head` opens. */
export const groupScales = /* wgsl */ `
fn groupScales(head: vec4u, g: u32) -> vec2f {
  let three = head.yzw >> vec3u((g & 3u) * 8u);
  let first = three.xy & vec2u(63u);
  let second = (vec2u(three.z, three.z >> 4u) & vec2u(15u)) | ((three.xy >> vec2u(2u)) & vec2u(48u));
  return halves(head.x) * vec2f(select(first, second, g >= 4u));
}
// Scale and minimum of group g, an even number, then of the next.
fn groupScalesPair(head: vec4u, g: u32) -> vec4f {
  let three = head.yzw >> vec3u((g & 3u) * 8u);
  let next = three >> vec3u(8u);
  let first = vec4u(three.xy, next.xy) & vec4u(63u);
  let low = vec4u(three.z, three.z >> 4u, next.z, next.z >> 4u) & vec4u(15u);
  let second = low | ((vec4u(three.xy, next.xy) >> vec4u(2u)) & vec4u(48u));
  let d = halves(head.x);
  return vec4f(d, d) * vec4f(select(first, second, g >= 4u));
}`;
