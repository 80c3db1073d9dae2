/**
 * What this runtime's WebAssembly offers: found by asking it whether it takes a module that needs the feature, and what it makes
 * of it.
 */

/** (module (func (result v128) i32.const 1 i8x16.splat)) */
const simd = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 1, 253, 15, 11];
/** The same with three splats and i32x4.relaxed_dot_i8x16_i7x16_add_s. */
const relaxed = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0, 65, 1, 253, 15, 65, 1, 253, 15, 65,
  1, 253, 15, 253, 147, 2, 11,
];

/** (module (func (export "f") (result i32) the same of bytes of 127, bytes of 255 and 0; i32x4.extract_lane 0)) */
const dot = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 7, 5, 1, 1, 102, 0, 0, 10, 23, 1, 21, 0, 65, 255, 0,
  253, 15, 65, 127, 253, 15, 65, 0, 253, 17, 253, 147, 2, 253, 27, 0, 11,
];
/** 4 · 127 · 255 in two i16 that saturate, as of instructions that add products of bytes in pairs only. */
const SATURATED = 2 * 32767;

/**
 * Whether products of bytes are added to a sum by one instruction, where there are relaxed products at all: with bytes above
 * 127 WebAssembly leaves the result to the processor, and saturated sums show that it takes several instructions.
 */
function hasDot(): boolean {
  try {
    const { f } = new WebAssembly.Instance(new WebAssembly.Module(new Uint8Array(dot))).exports;
    return (f as () => number)() !== SATURATED;
  } catch {
    // A page's policy may forbid what `validate` takes; then nothing here is asked for.
    return false;
  }
}

/**
 * Names as kernel rows ask for them: `simd`, `relaxed-simd`, `relaxed-dot` (its products of bytes with a sum are quick),
 * `threads` (shared memory).
 */
export function detectFeatures(): ReadonlySet<string> {
  const features = new Set<string>();
  if (typeof WebAssembly === 'undefined') return features;
  if (WebAssembly.validate(new Uint8Array(simd))) features.add('simd');
  if (WebAssembly.validate(new Uint8Array(relaxed))) {
    features.add('relaxed-simd');
    if (hasDot()) features.add('relaxed-dot');
  }
  if (typeof SharedArrayBuffer !== 'undefined') features.add('threads');
  return features;
}
