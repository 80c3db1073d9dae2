// Block formats times quantised rows: output[t][r] = Σ weight[r]·x[t] for the four rows of each group, many groups at once.

import { isDirect, matmulDirect } from './direct/index';
import { blockOf, dotTile } from './dot';
import { INT16_BLOCK, INT8_BLOCK } from './lanes';
import { blockBytes, decodeTiles, kindOf, tilesOf } from './tiles/index';
import { TILE } from './tiles/tile';

/**
 * `weight`: the first of `groups` groups, each `columns` wide. `x`: quantised rows, `xStride` bytes apart; row t of `rows` is
 * x[xIndex[t]] (or x[t] when `xIndex` is 0) and goes to out[outIndex[t]] (or out[t]), `outStride` bytes apart, at 16 bytes a
 * group. `scratch` holds 8 tiles and 16 bytes a row.
 */
export function matmul(
  format: i32, weight: usize, columns: i32, groups: i32,
  x: usize, xStride: usize, xIndex: usize, rows: i32,
  out: usize, outStride: usize, outIndex: usize, scratch: usize,
): void {
  const tiles = columns >> 5;
  const groupBytes = (<usize>tiles / <usize>tilesOf(format)) * blockBytes(format);
  if (isDirect(format)) {
    return matmulDirect(format, weight, columns, groups, groupBytes, x, xStride, xIndex, rows, out, outStride, outIndex);
  }
  const sums = scratch + 8 * TILE;
  const kind = kindOf(format);
  for (let group = 0; group < groups; group++) {
    memory.fill(sums, 0, <usize>rows << 4);
    let from = weight;
    for (let first = 0; first < tiles; first += 8) {
      const count = min(8, tiles - first);
      decodeTiles(format, from, scratch, count);
      from += (<usize>count / <usize>tilesOf(format)) * blockBytes(format);
      const column = x + <usize>first * (kind >= 4 ? INT16_BLOCK : INT8_BLOCK);
      switch (kind) {
        case 0: dotRows<u8>(scratch, count, column, xStride, xIndex, rows, sums); break;
        case 1: dotRows<i8>(scratch, count, column, xStride, xIndex, rows, sums); break;
        case 2: dotRows<u16>(scratch, count, column, xStride, xIndex, rows, sums); break;
        case 3: dotRows<i16>(scratch, count, column, xStride, xIndex, rows, sums); break;
        case 5: dotRows<u64>(scratch, count, column, xStride, xIndex, rows, sums); break;
        case 6: dotRows<i64>(scratch, count, column, xStride, xIndex, rows, sums); break;
        default: dotRows<u32>(scratch, count, column, xStride, xIndex, rows, sums); break;
      }
    }
    for (let t = 0; t < rows; t++) {
      const row = outIndex ? <usize>load<u32>(outIndex + (<usize>t << 2)) : <usize>t;
      v128.store(out + row * outStride, v128.load(sums + (<usize>t << 4)));
    }
    out += 16;
    weight += groupBytes;
  }
}

/** `count` tiles against every row, added to its sum; four rows at a time, for as many chains of sums. */
function dotRows<Kind>(tile: usize, count: i32, x: usize, xStride: usize, xIndex: usize, rows: i32, sums: usize): void {
  const end = tile + <usize>count * TILE;
  let t = 0;
  for (; t + 4 <= rows; t += 4) {
    let x0: usize, x1: usize, x2: usize, x3: usize;
    if (xIndex) {
      const index = xIndex + (<usize>t << 2);
      x0 = x + <usize>load<u32>(index) * xStride;
      x1 = x + <usize>load<u32>(index, 4) * xStride;
      x2 = x + <usize>load<u32>(index, 8) * xStride;
      x3 = x + <usize>load<u32>(index, 12) * xStride;
    } else {
      x0 = x + <usize>t * xStride;
      x1 = x0 + xStride;
      x2 = x1 + xStride;
      x3 = x2 + xStride;
    }
    const at = sums + (<usize>t << 4);
    let s0 = v128.load(at);
    let s1 = v128.load(at, 16);
    let s2 = v128.load(at, 32);
    let s3 = v128.load(at, 48);
    for (let from = tile; from < end; from += TILE) {
      s0 = dotTile<Kind>(from, x0, s0);
      s1 = dotTile<Kind>(from, x1, s1);
      s2 = dotTile<Kind>(from, x2, s2);
      s3 = dotTile<Kind>(from, x3, s3);
      x0 += blockOf<Kind>();
      x1 += blockOf<Kind>();
      x2 += blockOf<Kind>();
      x3 += blockOf<Kind>();
    }
    v128.store(at, s0);
    v128.store(at, s1, 16);
    v128.store(at, s2, 32);
    v128.store(at, s3, 48);
  }
  for (; t < rows; t++) {
    let row = x + (xIndex ? <usize>load<u32>(xIndex + (<usize>t << 2)) : <usize>t) * xStride;
    const at = sums + (<usize>t << 4);
    let sum = v128.load(at);
    for (let from = tile; from < end; from += TILE) {
      sum = dotTile<Kind>(from, row, sum);
      row += blockOf<Kind>();
    }
    v128.store(at, sum);
  }
}

/** Row `lane` (0…3) of a group as f32, `columns` of them, exactly as the reference decodes it. `scratch` holds 8 tiles. */
export function decodeRow(format: i32, group: usize, columns: i32, lane: i32, out: usize, scratch: usize): void {
  const tiles = columns >> 5;
  const kind = kindOf(format);
  for (let first = 0; first < tiles; first += 8) {
    const count = min(8, tiles - first);
    decodeTiles(format, group, scratch, count);
    group += (<usize>count / <usize>tilesOf(format)) * blockBytes(format);
    for (let i = 0; i < count; i++) {
      const tile = scratch + <usize>i * TILE + (<usize>lane << 2);
      for (let column = 0; column < 32; column++) {
        const at = tile + (<usize>(column >> 2) << 4) + <usize>(column & 3);
        const halves = kind == 2 || kind == 3;
        const parameters = tile + 128 + (halves && column >= 16 ? 32 : 0);
        const scale = f32.load(parameters);
        if (kind == 4) f32.store(out, scale * <f32>(<i32>load<i8>(at)));
        else f32.store(out, decodeByte(format, scale, f32.load(parameters, 16), <i32>load<u8>(at)));
        out += 4;
      }
    }
  }
}

/** scale · q + offset; where the format defines scale · (q - zero), computed so, since the two may round differently. */
// @ts-ignore: decorator
@inline
function decodeByte(format: i32, scale: f32, offset: f32, q: i32): f32 {
  switch (format) {
    case 0: return scale * <f32>(q - 8);
    case 2: return scale * <f32>(q - 16);
    case 6: return scale * <f32>(q - 4);
    case 9: return scale * <f32>(q - 32);
    case 12: case 13: case 14: return scale * <f32>(q - 12);
    default: return scale * <f32>q + offset;
  }
}
