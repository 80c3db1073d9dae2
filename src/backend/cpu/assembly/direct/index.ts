// Which formats have a direct kernel, and how their groups and rows are shared out to it.

import { tilesOf } from '../tiles/index';
import { multiplyMxfp4 } from './mxfp4';
import { multiplyNvfp4 } from './nvfp4';
import { multiplyQ4 } from './q4';
import { multiplyQ4K } from './q4_k';
import { multiplyQ6K } from './q6_k';
import { multiplyQ8_0 } from './q8_0';

// @ts-ignore: decorator
@inline
export function isDirect(format: i32): bool {
  switch (format) {
    case 0: case 1: case 4: case 7: case 9: case 12: case 13: return true;
    default: return false;
  }
}

// @ts-ignore: decorator
@inline
function rowAt(base: usize, stride: usize, index: usize, row: i32): usize {
  return base + (index ? <usize>load<u32>(index + (<usize>row << 2)) : <usize>row) * stride;
}

/**
 * As `matmul`, whose parameters these are. All rows pass while a group is in the cache. Groups are read one after the other: two
 * at once cost less in the cache, but the processor does not foresee two streams, which takes more than twice as long from memory.
 */
export function matmulDirect(
  format: i32, weight: usize, columns: i32, groups: i32, groupBytes: usize,
  x: usize, xStride: usize, xIndex: usize, rows: i32, out: usize, outStride: usize, outIndex: usize,
): void {
  const blocks = (columns >> 5) / tilesOf(format);
  const last = rows - 1;
  for (let group = 0; group < groups; group++) {
    for (let t = 0; t < rows; t += 4) {
      const t1 = min(t + 1, last), t2 = min(t + 2, last), t3 = min(t + 3, last);
      const x0 = rowAt(x, xStride, xIndex, t), x1 = rowAt(x, xStride, xIndex, t1);
      const x2 = rowAt(x, xStride, xIndex, t2), x3 = rowAt(x, xStride, xIndex, t3);
      const out0 = rowAt(out, outStride, outIndex, t), out1 = rowAt(out, outStride, outIndex, t1);
      const out2 = rowAt(out, outStride, outIndex, t2), out3 = rowAt(out, outStride, outIndex, t3);
      switch (min(4, rows - t)) {
        case 1: multiply<u8>(format, weight, blocks, x0, x1, x2, x3, out0, out1, out2, out3); break;
        case 2: multiply<u16>(format, weight, blocks, x0, x1, x2, x3, out0, out1, out2, out3); break;
        case 3: multiply<u32>(format, weight, blocks, x0, x1, x2, x3, out0, out1, out2, out3); break;
        default: multiply<u64>(format, weight, blocks, x0, x1, x2, x3, out0, out1, out2, out3);
      }
    }
    out += 16;
    weight += groupBytes;
  }
}

// @ts-ignore: decorator
@inline
function multiply<Rows>(
  format: i32, group: usize, blocks: i32, x0: usize, x1: usize, x2: usize, x3: usize,
  out0: usize, out1: usize, out2: usize, out3: usize,
): void {
  switch (format) {
    case 0: return multiplyQ4<Rows, u8>(group, blocks, x0, x1, x2, x3, out0, out1, out2, out3);
    case 1: return multiplyQ4<Rows, u16>(group, blocks, x0, x1, x2, x3, out0, out1, out2, out3);
    case 4: return multiplyQ8_0<Rows>(group, blocks, x0, x1, x2, x3, out0, out1, out2, out3);
    case 7: return multiplyQ4K<Rows>(group, blocks, x0, x1, x2, x3, out0, out1, out2, out3);
    case 9: return multiplyQ6K<Rows>(group, blocks, x0, x1, x2, x3, out0, out1, out2, out3);
    case 12: return multiplyMxfp4<Rows>(group, blocks, x0, x1, x2, x3, out0, out1, out2, out3);
    default: multiplyNvfp4<Rows>(group, blocks, x0, x1, x2, x3, out0, out1, out2, out3);
  }
}
