// F32, F16 and BF16 weights times f32 rows. A group holds column after column of four rows; eight partial sums take the
// columns in turn and are added in one fixed order, so the bits do not depend on how many rows there are.

import { decodeRowFp8, matmulFp8 } from './fp8';
import { F16_BIAS, F16_KNEE, F16_MAGNITUDE, F16_TINY, f16Lanes } from './lanes';

/** Four rows of one column. u32: F32; u16: F16; i16: BF16. */
// @ts-ignore: decorator
@inline
function loadColumn<Format>(at: usize, magnitude: v128, bias: v128, knee: v128, tiny: v128): v128 {
  if (sizeof<Format>() == 4) return v128.load(at);
  const half = v128.load_ext<u16>(at);
  if (isSigned<Format>()) return i32x4.shl(half, 16);
  return f16Lanes(half, magnitude, bias, knee, tiny);
}

// @ts-ignore: decorator
@inline
function groupDot<Format>(weight: usize, columns: i32, x: usize): v128 {
  const step: usize = 4 * sizeof<Format>();
  const magnitude = i32x4.splat(F16_MAGNITUDE);
  const bias = i32x4.splat(F16_BIAS);
  const knee = f32x4.splat(F16_KNEE);
  const tiny = f32x4.splat(F16_TINY);
  let s0 = f32x4.splat(0);
  let s1 = f32x4.splat(0);
  let s2 = f32x4.splat(0);
  let s3 = f32x4.splat(0);
  let s4 = f32x4.splat(0);
  let s5 = f32x4.splat(0);
  let s6 = f32x4.splat(0);
  let s7 = f32x4.splat(0);
  let column = 0;
  for (; column + 8 <= columns; column += 8) {
    s0 = f32x4.add(s0, f32x4.mul(loadColumn<Format>(weight, magnitude, bias, knee, tiny), v128.load32_splat(x)));
    s1 = f32x4.add(s1, f32x4.mul(loadColumn<Format>(weight + step, magnitude, bias, knee, tiny), v128.load32_splat(x, 4)));
    s2 = f32x4.add(s2, f32x4.mul(loadColumn<Format>(weight + 2 * step, magnitude, bias, knee, tiny), v128.load32_splat(x, 8)));
    s3 = f32x4.add(s3, f32x4.mul(loadColumn<Format>(weight + 3 * step, magnitude, bias, knee, tiny), v128.load32_splat(x, 12)));
    s4 = f32x4.add(s4, f32x4.mul(loadColumn<Format>(weight + 4 * step, magnitude, bias, knee, tiny), v128.load32_splat(x, 16)));
    s5 = f32x4.add(s5, f32x4.mul(loadColumn<Format>(weight + 5 * step, magnitude, bias, knee, tiny), v128.load32_splat(x, 20)));
    s6 = f32x4.add(s6, f32x4.mul(loadColumn<Format>(weight + 6 * step, magnitude, bias, knee, tiny), v128.load32_splat(x, 24)));
    s7 = f32x4.add(s7, f32x4.mul(loadColumn<Format>(weight + 7 * step, magnitude, bias, knee, tiny), v128.load32_splat(x, 28)));
    weight += 8 * step;
    x += 32;
  }
  for (; column < columns; column++) {
    s0 = f32x4.add(s0, f32x4.mul(loadColumn<Format>(weight, magnitude, bias, knee, tiny), v128.load32_splat(x)));
    weight += step;
    x += 4;
  }
  return f32x4.add(f32x4.add(f32x4.add(s0, s1), f32x4.add(s2, s3)), f32x4.add(f32x4.add(s4, s5), f32x4.add(s6, s7)));
}

// @ts-ignore: decorator
@inline
function floatGroups<Format>(
  weight: usize, columns: i32, groups: i32, x: usize, xStride: usize, xIndex: usize, rows: i32,
  out: usize, outStride: usize, outIndex: usize,
): void {
  const groupBytes = <usize>columns * 4 * sizeof<Format>();
  for (let group = 0; group < groups; group++) {
    for (let t = 0; t < rows; t++) {
      const from = xIndex ? <usize>load<u32>(xIndex + (<usize>t << 2)) : <usize>t;
      const to = outIndex ? <usize>load<u32>(outIndex + (<usize>t << 2)) : <usize>t;
      v128.store(out + to * outStride, groupDot<Format>(weight, columns, x + from * xStride));
    }
    weight += groupBytes;
    out += 16;
  }
}

/** As `matmul`, over f32 rows; `format` is 0 for F32, 1 for F16, 2 for BF16, 3 and 4 for FP8 in blocks of 32 and 128. */
export function matmulFloat(
  format: i32, weight: usize, columns: i32, groups: i32, x: usize, xStride: usize, xIndex: usize, rows: i32,
  out: usize, outStride: usize, outIndex: usize,
): void {
  if (format >= 3) {
    const length = format == 3 ? 32 : 128;
    matmulFp8(length, weight, columns, groups, x, xStride, xIndex, rows, out, outStride, outIndex);
  } else if (format == 0) floatGroups<u32>(weight, columns, groups, x, xStride, xIndex, rows, out, outStride, outIndex);
  else if (format == 1) floatGroups<u16>(weight, columns, groups, x, xStride, xIndex, rows, out, outStride, outIndex);
  else floatGroups<i16>(weight, columns, groups, x, xStride, xIndex, rows, out, outStride, outIndex);
}

// @ts-ignore: decorator
@inline
function halfOf(bits: u16): v128 {
  return f16Lanes(
    i32x4.splat(<i32>bits), i32x4.splat(F16_MAGNITUDE), i32x4.splat(F16_BIAS), f32x4.splat(F16_KNEE), f32x4.splat(F16_TINY),
  );
}

/** Row `lane` (0…3) of a group as f32. */
export function decodeRowFloat(format: i32, group: usize, columns: i32, lane: i32, out: usize): void {
  if (format >= 3) return decodeRowFp8(format == 3 ? 32 : 128, group, columns, lane, out);
  for (let column = 0; column < columns; column++) {
    const at = (<usize>column << 2) + <usize>lane;
    if (format == 0) f32.store(out, f32.load(group + (at << 2)));
    else if (format == 1) f32.store(out, f32x4.extract_lane(halfOf(load<u16>(group + (at << 1))), 0));
    else store<u32>(out, <u32>load<u16>(group + (at << 1)) << 16);
    out += 4;
  }
}
