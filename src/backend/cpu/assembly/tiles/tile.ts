// A tile is what every block format decodes to: 32 columns of four rows as bytes of 0…127 (or signed, see `dot.ts`), with a
// scale and an offset a row, weight = scale · byte + offset, once for all 32 columns or for each half; or with a zero,
// weight = scale · (byte - zero).

/** Bytes of a tile: 8 vectors of 4 rows × 4 columns, then scale, offset (first half), scale, offset (second half). */
export const TILE: usize = 192;
export const SCALE: usize = 128;
export const OFFSET: usize = 144;
/** In the offset's place: the zero as eight i16. */
export const ZERO: usize = 144;
export const SCALE_SECOND: usize = 160;
export const OFFSET_SECOND: usize = 176;

// @ts-ignore: decorator
@inline
export function low4(packed: v128): v128 {
  return v128.and(packed, i8x16.splat(15));
}

// @ts-ignore: decorator
@inline
export function high4(packed: v128): v128 {
  // x86 shifts no bytes: a 16-bit shift and a mask are two instructions where i8x16.shr_u takes four.
  return v128.and(i16x8.shr_u(packed, 4), i8x16.splat(15));
}

/** Byte `index` (0…3) of each lane, as an i32 lane. */
// @ts-ignore: decorator
@inline
export function byteOfLane(lanes: v128, index: i32): v128 {
  return i32x4.shr_u(i32x4.shl(lanes, 24 - (index << 3)), 24);
}

/** Bits 0…3 of each lane, one to each byte of the lane, as 0 or 1. */
// @ts-ignore: decorator
@inline
export function spreadBits(lanes: v128): v128 {
  return v128.and(i32x4.mul(v128.and(lanes, i32x4.splat(15)), i32x4.splat(0x00204081)), i32x4.splat(0x01010101));
}
