/** Pieces that every kernel's WGSL is composed from. */

/** Helpers of decode snippets: reads at any byte of the weight `w`, from a plane's first word. */
export const weightHelpers = /* wgsl */ `
fn byteAt(plane: u32, i: u32) -> u32 { return (w[plane + (i >> 2u)] >> ((i & 3u) * 8u)) & 255u; }
fn halfAt(plane: u32, i: u32) -> f32 {
  let word = w[plane + (i >> 1u)];
  return unpack2x16float(select(word & 0xffffu, word >> 16u, (i & 1u) == 1u)).x;
}
/** The four bytes of a word as numbers. */
fn bytesOf(word: u32) -> vec4f { return vec4f(vec4u(word, word >> 8u, word >> 16u, word >> 24u) & vec4u(255u)); }
/** The four bytes of a word as signed numbers. */
fn signedBytesOf(word: u32) -> vec4f { return vec4f(vec4i(i32(word << 24u), i32(word << 16u), i32(word << 8u), i32(word)) >> vec4u(24u)); }
`;
