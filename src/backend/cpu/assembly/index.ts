// What a worker may call. Pointers are byte addresses in the one memory of the instance: an arena.

export { add, combine, encodeInt16, encodeInt8, rmsNorm, rope, sigmoid } from './activations';
export { attend, storeCache } from './attention';
export { decodeRowFloat, matmulFloat } from './float';
export { clampedSwiglu, gate, geluMul, scale, siluMul, softcap } from './gating';
export { interleave } from './interleave';
export {
  F16_BIAS, F16_BITS, F16_EXPONENT, F16_KNEE, F16_MAGNITUDE, F16_SCALE, F16_TINY, HIGH_PAIR, NIBBLE,
} from './lanes';
export { decodeRow, matmul } from './matmul';
export { route, sortPairs } from './routing';

/** Σ of 64-bit words, for measuring how fast memory can be read. */
export function readBytes(from: usize, bytes: usize): i64 {
  let a = i64x2.splat(0);
  let b = i64x2.splat(0);
  let c = i64x2.splat(0);
  let d = i64x2.splat(0);
  const end = from + bytes;
  for (; from < end; from += 64) {
    a = i64x2.add(a, v128.load(from));
    b = i64x2.add(b, v128.load(from, 16));
    c = i64x2.add(c, v128.load(from, 32));
    d = i64x2.add(d, v128.load(from, 48));
  }
  return i64x2.extract_lane(i64x2.add(i64x2.add(a, b), i64x2.add(c, d)), 0);
}
