/**
 * Activations as signed bytes with one scale for 32 columns, and their products with the codes of a weight
 * (`codes32`, `formats.ts`). Sums of products of bytes are exact, so their order does not matter; what follows them is
 * written out, so that every kernel rounds alike.
 */

/** What WGSL must offer: `navigator.gpu.wgslLanguageFeatures`. */
export const INT8_FEATURE = 'packed_4x8_integer_dot_product';

/**
 * WGSL, once a module, after `weightHelpers`: `Encoded`, what makes one, and `dotCodes(codes, x)`, which is about the dot
 * product of 32 columns. A block with a NaN or an infinity has the scale NaN; one without a value of 2^-101 or more is zero.
 */
export const int8Helpers = /* wgsl */ `
struct Encoded { lo: vec4u, hi: vec4u, scale: f32, sums: vec2f }
fn sizeOf(v: vec4f) -> vec4u { return bitcast<vec4u>(v) & vec4u(0x7fffffffu); }
fn bytesFor(v: vec4f, inverse: f32) -> u32 { return pack4xI8(vec4i(clamp(round(v * inverse), vec4f(-127.0), vec4f(127.0)))); }
fn sumOf(words: vec4u) -> i32 {
  let ones = 0x01010101u;
  return (dot4I8Packed(words.x, ones) + dot4I8Packed(words.y, ones)) + (dot4I8Packed(words.z, ones) + dot4I8Packed(words.w, ones));
}
/**
 * Of the size (bits without the sign) of the largest of a block: what its values are multiplied with, and divided by. Devices
 * divide by way of the reciprocal, and that of a very large value is a subnormal, which they may take for zero: such a value is
 * divided by 2^32 first, in its bits, where no compiler looks through it, and so is the result.
 */
fn inverseFor(most: u32) -> f32 {
  let shift = select(0u, 0x10000000u, most >= 0x70000000u);
  let inverse = bitcast<f32>(bitcast<u32>(127.0 / bitcast<f32>(most - shift)) - shift);
  return select(0.0, inverse, most < 0x7f800000u && most >= 0x0d000000u);
}
fn scaleFor(most: u32) -> f32 {
  return bitcast<f32>(select(0x7fc00000u, bitcast<u32>(bitcast<f32>(most) * 0.007874015748031496), most < 0x7f800000u));
}
fn encodedOf(lo: vec4u, hi: vec4u, scale: f32) -> Encoded {
  return Encoded(lo, hi, scale, scale * vec2f(f32(sumOf(lo)), f32(sumOf(hi))));
}
fn dotWords(a: vec4u, b: vec4u) -> f32 {
  return f32((dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)) + (dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w)));
}
fn dotCodes(c: Codes, x: Encoded) -> f32 {
  let products = fma(c.scale.y, dotWords(c.hi, x.hi), c.scale.x * dotWords(c.lo, x.lo));
  return fma(x.scale, products, -fma(c.minimum.y, x.sums.y, c.minimum.x * x.sums.x));
}
`;
