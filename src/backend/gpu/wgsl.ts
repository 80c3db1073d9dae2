/** Pieces that every kernel's WGSL is composed from. */

/**
 * What the decoders of all formats share. Codes of 32 columns travel as bytes in two vec4u: `lo` holds columns 0–15, `hi`
 * columns 16–31, four to a word.
 */
export const weightHelpers = /* wgsl */ `
/** The four bytes of a word as numbers. */
fn bytesOf(word: u32) -> vec4f { return vec4f(vec4u(word, word >> 8u, word >> 16u, word >> 24u) & vec4u(255u)); }
/** The four bytes of a word as signed numbers. */
fn signedBytesOf(word: u32) -> vec4f {
  return vec4f(vec4i(vec4u(word << 24u, word << 16u, word << 8u, word)) >> vec4u(24u));
}
/** The two f16 of a word; subnormal ones too, which unpack2x16float may make zero. */
fn halves(word: u32) -> vec2f {
  let bits = vec2u(word, word >> 16u);
  let tiny = bitcast<vec2u>(vec2f(bits & vec2u(0x3ffu)) * 5.9604644775390625e-8) | ((bits & vec2u(0x8000u)) << vec2u(16u));
  return select(unpack2x16float(word), bitcast<vec2f>(tiny), (bits & vec2u(0x7c00u)) == vec2u(0u));
}
fn lowNibbles(codes: vec4u) -> vec4u { return codes & vec4u(0x0f0f0f0fu); }
fn highNibbles(codes: vec4u) -> vec4u { return (codes >> vec4u(4u)) & vec4u(0x0f0f0f0fu); }
/** Bit 0–3 of each byte of a word, each in bytes of its own. */
fn bitsOf(word: u32) -> vec4u { return (vec4u(word) >> vec4u(0u, 1u, 2u, 3u)) & vec4u(0x01010101u); }
/** The four pairs of bits of each byte of a word, each in bytes of its own. */
fn bitPairsOf(word: u32) -> vec4u { return (vec4u(word) >> vec4u(0u, 2u, 4u, 6u)) & vec4u(0x03030303u); }
/** scale · (code − offset); a scale for 16 columns. */
fn scaled32(lo: vec4u, hi: vec4u, offset: f32, scale: vec2f) -> array<vec4f, 8> {
  let o = vec4f(offset);
  return array<vec4f, 8>(
    scale.x * (bytesOf(lo.x) - o), scale.x * (bytesOf(lo.y) - o), scale.x * (bytesOf(lo.z) - o), scale.x * (bytesOf(lo.w) - o),
    scale.y * (bytesOf(hi.x) - o), scale.y * (bytesOf(hi.y) - o), scale.y * (bytesOf(hi.z) - o), scale.y * (bytesOf(hi.w) - o));
}
/** scale · code − minimum; a scale and a minimum for 16 columns. */
fn affine32(lo: vec4u, hi: vec4u, scale: vec2f, minimum: vec2f) -> array<vec4f, 8> {
  let m = vec4f(minimum.x);
  let n = vec4f(minimum.y);
  return array<vec4f, 8>(
    scale.x * bytesOf(lo.x) - m, scale.x * bytesOf(lo.y) - m, scale.x * bytesOf(lo.z) - m, scale.x * bytesOf(lo.w) - m,
    scale.y * bytesOf(hi.x) - n, scale.y * bytesOf(hi.y) - n, scale.y * bytesOf(hi.z) - n, scale.y * bytesOf(hi.w) - n);
}
/** E2M1's values, doubled, of the four codes in a word's bytes. */
fn e2m1Of(codes: u32) -> vec4f {
  let c = vec4u(codes, codes >> 8u, codes >> 16u, codes >> 24u) & vec4u(15u);
  let size = vec4i((vec4u(0xc8643210u) >> ((c & vec4u(7u)) * 4u)) & vec4u(15u));
  return vec4f(select(size, -size, (c & vec4u(8u)) != vec4u(0u)));
}
/** scale · doubled E2M1; a scale for 16 columns. */
fn e2m1Scaled32(codes: vec4u, scale: vec2f) -> array<vec4f, 8> {
  let lo = lowNibbles(codes);
  let hi = highNibbles(codes);
  return array<vec4f, 8>(
    scale.x * e2m1Of(lo.x), scale.x * e2m1Of(lo.y), scale.x * e2m1Of(lo.z), scale.x * e2m1Of(lo.w),
    scale.y * e2m1Of(hi.x), scale.y * e2m1Of(hi.y), scale.y * e2m1Of(hi.z), scale.y * e2m1Of(hi.w));
}
/** The levels of IQ4_NL for the four codes in a word's bytes. */
fn levelsOf(codes: u32) -> vec4f {
  let c = vec4u(codes, codes >> 8u, codes >> 16u, codes >> 24u) & vec4u(15u);
  let odd = (c & vec4u(4u)) != vec4u(0u);
  let low = select(vec4u(0xbfad9881u), vec4u(0xf6eaddcfu), odd);
  let high = select(vec4u(0x26190d01u), vec4u(0x71594535u), odd);
  let four = select(low, high, (c & vec4u(8u)) != vec4u(0u));
  return vec4f(vec4i(four << (vec4u(24u) - (c & vec4u(3u)) * 8u)) >> vec4u(24u));
}
/** scale · level. */
fn levels32(codes: vec4u, scale: f32) -> array<vec4f, 8> {
  let lo = lowNibbles(codes);
  let hi = highNibbles(codes);
  return array<vec4f, 8>(
    scale * levelsOf(lo.x), scale * levelsOf(lo.y), scale * levelsOf(lo.z), scale * levelsOf(lo.w),
    scale * levelsOf(hi.x), scale * levelsOf(hi.y), scale * levelsOf(hi.z), scale * levelsOf(hi.w));
}
`;
