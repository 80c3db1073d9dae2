/** What this runtime's WebAssembly offers: found by asking it whether it takes a module that needs the feature. */

/** (module (func (result v128) i32.const 1 i8x16.splat)) */
const simd = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 1, 253, 15, 11];
/** The same with three splats and i32x4.relaxed_dot_i8x16_i7x16_add_s. */
const relaxed = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0, 65, 1, 253, 15, 65, 1, 253, 15, 65,
  1, 253, 15, 253, 147, 2, 11,
];

/** Names as kernel rows ask for them: `simd`, `relaxed-simd`, `threads` (shared memory). */
export function detectFeatures(): ReadonlySet<string> {
  const features = new Set<string>();
  if (typeof WebAssembly === 'undefined') return features;
  if (WebAssembly.validate(new Uint8Array(simd))) features.add('simd');
  if (WebAssembly.validate(new Uint8Array(relaxed))) features.add('relaxed-simd');
  if (typeof SharedArrayBuffer !== 'undefined') features.add('threads');
  return features;
}
