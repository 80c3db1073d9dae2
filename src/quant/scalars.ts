/**
 * The small number types that block formats store, to and from f32. Nothing here allocates.
 *
 * Decoders compute in JavaScript's f64 and round once, at the store into a Float32Array. That equals f32 arithmetic bit
 * for bit: an f16 scale is a whole multiple of 2^-24 below 2^16, so its products with the integers of a block (13 bits
 * at most) and the sums of two such products are exact in f64's 53 bits, and where the definition rounds in between
 * (scale × sub-scale), that product fits f32's 24 bits and the rounding changes nothing.
 */

const words = new Uint32Array(1);
const floats = new Float32Array(words.buffer);

/** 2^(exponent - 25): what one unit of an f16's 11-bit significand is worth. Exponent 31 makes ±Infinity or NaN. */
const f16Units = Float64Array.from({ length: 32 }, (_, exponent) =>
  exponent === 31 ? Infinity : 2 ** (exponent - 25),
);

/** The value of an IEEE half-precision number given by its 16 bits. */
export function f16ToF32(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 1023;
  let value: number;
  if (exponent === 0) {
    value = mantissa * 2 ** -24;
  } else if (exponent === 31 && mantissa !== 0) {
    return NaN;
  } else {
    value = (mantissa + 1024) * (f16Units[exponent] as number);
  }
  return bits & 0x8000 ? -value : value;
}

/** The f16 that starts at byte `offset`, least significant byte first. */
export function readF16(bytes: Uint8Array, offset: number): number {
  return f16ToF32((bytes[offset] as number) | ((bytes[offset + 1] as number) << 8));
}

/** The 16 bits of the f16 nearest to an f32, ties to even; above 65,504 by half a step or more, infinity. */
export function f32ToF16(value: number): number {
  floats[0] = value;
  const bits = words[0] as number;
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 255) - 127;
  const magnitude = Math.abs(floats[0] as number);
  if (Number.isNaN(magnitude)) {
    return sign | 0x7e00;
  }
  if (magnitude >= 65520) {
    return sign | 0x7c00;
  }
  // A significand that rounds up to the next power of two carries into the exponent by itself.
  return exponent < -14
    ? sign | roundHalfEven(magnitude * 2 ** 24)
    : sign | (((exponent + 14) << 10) + roundHalfEven(magnitude * 2 ** (10 - exponent)));
}

/** Writes an f16 at byte `offset`, least significant byte first, and returns the value it then has. */
export function writeF16(bytes: Uint8Array, offset: number, value: number): number {
  const bits = f32ToF16(value);
  bytes[offset] = bits & 255;
  bytes[offset + 1] = bits >> 8;
  return f16ToF32(bits);
}

/** The value of a bfloat16 given by its 16 bits: the upper half of an f32. */
export function bf16ToF32(bits: number): number {
  words[0] = bits << 16;
  return floats[0] as number;
}

/** The 16 bits of the bfloat16 nearest to an f32, ties to even. */
export function f32ToBf16(value: number): number {
  floats[0] = value;
  const bits = words[0] as number;
  if (Number.isNaN(value)) {
    return (bits >>> 16) | 0x40;
  }
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

/**
 * An E8M0 scale (OCP Microscaling formats, version 1.0): 2^(bits - 127); 255 is NaN. All of them, 2^-127 too, are f32
 * values.
 */
export function e8m0ToF32(bits: number): number {
  return bits === 255 ? NaN : 2 ** (bits - 127);
}

/** An E4M3 number (OCP 8-bit floating point, "FN" form: no infinities, 0x7F and 0xFF are NaN). */
export function e4m3ToF32(bits: number): number {
  const exponent = (bits >> 3) & 15;
  const mantissa = bits & 7;
  if (exponent === 15 && mantissa === 7) {
    return NaN;
  }
  const magnitude = exponent === 0 ? mantissa * 2 ** -9 : (mantissa + 8) * 2 ** (exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

/** The values of E2M1's 16 codes, doubled so that they are integers. Code 8 is 0, not -0, as GGML has it. */
export const e2m1Doubled = Int8Array.of(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

/** To the nearest integer, ties to even; for magnitudes below 2^51. */
export function roundHalfEven(value: number): number {
  const shift = 1.5 * 2 ** 52;
  return value + shift - shift;
}

/** To the nearest integer, ties away from zero: C's `roundf`. */
export function roundHalfAway(value: number): number {
  return value < 0 ? -Math.floor(0.5 - value) : Math.floor(value + 0.5);
}

/** The sixteen levels of IQ4_NL and IQ4_XS. */
export const unevenLevels = Int8Array.of(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
