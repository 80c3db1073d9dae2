// FP8 weights (E4M3) times f32 rows. A group's block is the scales of four rows, then four columns after four of each row. A
// block's sum is multiplied with its scale once; four partial sums take the columns in turn and are added in one fixed order.

/** Four rows of E4M3, the lowest byte of each lane, as f32. */
// @ts-ignore: decorator
@inline
function e4m3(bytes: v128): v128 {
  const magnitude = v128.and(bytes, i32x4.splat(0x7f));
  const sign = i32x4.shl(v128.and(bytes, i32x4.splat(0x80)), 24);
  // As an f32 exponent and mantissa it is 2^-120 too small; subnormals come right by the multiplication.
  const value = f32x4.mul(i32x4.shl(magnitude, 20), f32x4.splat(reinterpret<f32>(0x7b800000)));
  const nothing = v128.and(i32x4.eq(magnitude, i32x4.splat(0x7f)), i32x4.splat(0x7fc00000));
  return v128.or(v128.or(value, sign), nothing);
}

/** One group times one row; `length`: columns of a block, 32 or 128. */
// @ts-ignore: decorator
@inline
function groupDot(weight: usize, columns: i32, length: i32, x: usize): v128 {
  let sum = f32x4.splat(0);
  for (let first = 0; first < columns; first += length) {
    const scale = v128.load(weight);
    weight += 16;
    let s0 = f32x4.splat(0);
    let s1 = f32x4.splat(0);
    let s2 = f32x4.splat(0);
    let s3 = f32x4.splat(0);
    for (let column = 0; column < length; column += 4) {
      const four = v128.load(weight);
      s0 = f32x4.add(s0, f32x4.mul(e4m3(four), v128.load32_splat(x)));
      s1 = f32x4.add(s1, f32x4.mul(e4m3(i32x4.shr_u(four, 8)), v128.load32_splat(x, 4)));
      s2 = f32x4.add(s2, f32x4.mul(e4m3(i32x4.shr_u(four, 16)), v128.load32_splat(x, 8)));
      s3 = f32x4.add(s3, f32x4.mul(e4m3(i32x4.shr_u(four, 24)), v128.load32_splat(x, 12)));
      weight += 16;
      x += 16;
    }
    sum = f32x4.add(sum, f32x4.mul(f32x4.add(f32x4.add(s0, s1), f32x4.add(s2, s3)), scale));
  }
  return sum;
}

/** As `matmulFloat`, for blocks of `length` columns. */
export function matmulFp8(
  length: i32, weight: usize, columns: i32, groups: i32, x: usize, xStride: usize, xIndex: usize, rows: i32,
  out: usize, outStride: usize, outIndex: usize,
): void {
  const groupBytes = <usize>(columns / length) * <usize>(4 + length) * 4;
  for (let group = 0; group < groups; group++) {
    for (let t = 0; t < rows; t++) {
      const from = xIndex ? <usize>load<u32>(xIndex + (<usize>t << 2)) : <usize>t;
      const to = outIndex ? <usize>load<u32>(outIndex + (<usize>t << 2)) : <usize>t;
      v128.store(out + to * outStride, groupDot(weight, columns, length, x + from * xStride));
    }
    weight += groupBytes;
    out += 16;
  }
}

/** Row `lane` (0…3) of a group as f32. */
export function decodeRowFp8(length: i32, group: usize, columns: i32, lane: i32, out: usize): void {
  for (let first = 0; first < columns; first += length) {
    const scale = f32.load(group + (<usize>lane << 2));
    group += 16;
    for (let column = 0; column < length; column++) {
      const byte = <i32>load<u8>(group + (<usize>lane << 2) + <usize>(column & 3));
      const value = f32x4.extract_lane(e4m3(i32x4.splat(byte)), 0);
      f32.store(out, scale * value);
      if ((column & 3) == 3) group += 16;
      out += 4;
    }
  }
}
