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
/** What 32 columns are made of: code (a signed byte) · scale − minimum; a scale and a minimum for 16 columns. */
struct Codes { lo: vec4u, hi: vec4u, scale: vec2f, minimum: vec2f }
struct CodesPair { first: Codes, second: Codes }
/** scale · (code − offset): for scales so wide that scale · code is not exact. */
fn scaled32(c: Codes, offset: f32) -> array<vec4f, 8> {
  let o = vec4f(offset);
  return array<vec4f, 8>(
    c.scale.x * (bytesOf(c.lo.x) - o), c.scale.x * (bytesOf(c.lo.y) - o),
    c.scale.x * (bytesOf(c.lo.z) - o), c.scale.x * (bytesOf(c.lo.w) - o),
    c.scale.y * (bytesOf(c.hi.x) - o), c.scale.y * (bytesOf(c.hi.y) - o),
    c.scale.y * (bytesOf(c.hi.z) - o), c.scale.y * (bytesOf(c.hi.w) - o));
}
/** scale · code − minimum, for codes that are not negative. */
fn affine32(c: Codes) -> array<vec4f, 8> {
  let m = vec4f(c.minimum.x);
  let n = vec4f(c.minimum.y);
  return array<vec4f, 8>(
    c.scale.x * bytesOf(c.lo.x) - m, c.scale.x * bytesOf(c.lo.y) - m,
    c.scale.x * bytesOf(c.lo.z) - m, c.scale.x * bytesOf(c.lo.w) - m,
    c.scale.y * bytesOf(c.hi.x) - n, c.scale.y * bytesOf(c.hi.y) - n,
    c.scale.y * bytesOf(c.hi.z) - n, c.scale.y * bytesOf(c.hi.w) - n);
}
/** scale · code. */
fn signed32(c: Codes) -> array<vec4f, 8> {
  return array<vec4f, 8>(
    c.scale.x * signedBytesOf(c.lo.x), c.scale.x * signedBytesOf(c.lo.y),
    c.scale.x * signedBytesOf(c.lo.z), c.scale.x * signedBytesOf(c.lo.w),
    c.scale.y * signedBytesOf(c.hi.x), c.scale.y * signedBytesOf(c.hi.y),
    c.scale.y * signedBytesOf(c.hi.z), c.scale.y * signedBytesOf(c.hi.w));
}
/** E2M1's values, doubled, as signed bytes, of the codes in the bytes of four words. */
fn e2m1Bytes(codes: vec4u) -> vec4u {
  let ones = vec4u(0x01010101u);
  let a = codes & ones;
  let b = (codes >> vec4u(1u)) & ones;
  let c = (codes >> vec4u(2u)) & ones;
  // Doubled sizes 0, 1, 2, 3, 4, 6, 8, 12 of codes cba, bit by bit.
  let bit0 = a & ~c;
  let bit1 = (b & ~c) | (a & c & ~b);
  let bit2 = c & (a | (ones ^ b));
  let size = bit0 | (bit1 << vec4u(1u)) | (bit2 << vec4u(2u)) | ((b & c) << vec4u(3u));
  let negative = (vec4u(0x80808080u) - size) ^ vec4u(0x80808080u);
  let signs = ((codes >> vec4u(3u)) & ones) * vec4u(255u);
  return (size & ~signs) | (negative & signs);
}
/** The levels of IQ4_NL, signed bytes in the low end of four words, for the four codes in a word's bytes. */
fn fourLevels(codes: u32) -> vec4u {
  let c = vec4u(codes, codes >> 8u, codes >> 16u, codes >> 24u) & vec4u(15u);
  let odd = (c & vec4u(4u)) != vec4u(0u);
  let low = select(vec4u(0xbfad9881u), vec4u(0xf6eaddcfu), odd);
  let high = select(vec4u(0x26190d01u), vec4u(0x71594535u), odd);
  return select(low, high, (c & vec4u(8u)) != vec4u(0u)) >> ((c & vec4u(3u)) * 8u);
}
fn levelsOf(codes: u32) -> vec4f { return vec4f(vec4i(fourLevels(codes) << vec4u(24u)) >> vec4u(24u)); }
fn levelBytes(codes: u32) -> u32 {
  let four = (fourLevels(codes) & vec4u(255u)) << vec4u(0u, 8u, 16u, 24u);
  return (four.x | four.y) | (four.z | four.w);
}
/** scale · level, of 32 nibbles. */
fn levels32(codes: vec4u, scale: f32) -> array<vec4f, 8> {
  let lo = lowNibbles(codes);
  let hi = highNibbles(codes);
  return array<vec4f, 8>(
    scale * levelsOf(lo.x), scale * levelsOf(lo.y), scale * levelsOf(lo.z), scale * levelsOf(lo.w),
    scale * levelsOf(hi.x), scale * levelsOf(hi.y), scale * levelsOf(hi.z), scale * levelsOf(hi.w));
}
fn levelCodes(codes: vec4u, scale: f32) -> Codes {
  let lo = lowNibbles(codes);
  let hi = highNibbles(codes);
  return Codes(
    vec4u(levelBytes(lo.x), levelBytes(lo.y), levelBytes(lo.z), levelBytes(lo.w)),
    vec4u(levelBytes(hi.x), levelBytes(hi.y), levelBytes(hi.z), levelBytes(hi.w)),
    vec2f(scale), vec2f());
}
`;
