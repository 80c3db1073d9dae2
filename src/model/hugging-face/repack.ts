/**
 * Quantised tensors of safetensors checkpoints in the block layouts of `quant/`: codes and scales, which a checkpoint keeps
 * apart, are put side by side, block by block. Bits move, no value changes.
 */

import type { TensorInfo } from '../../format/model-file.ts';
import type { ByteSource } from '../../format/source.ts';
import { type RowsView, rowsView, type View } from '../../format/views.ts';
import { formatOf } from '../../quant/index.ts';

/** Where a tensor's bytes can be read. */
export interface Stored {
  readonly tensor: TensorInfo;
  readonly source: ByteSource;
}

async function read({ tensor, source }: Stored, offset: number, bytes: number): Promise<Uint8Array> {
  const target = new Uint8Array(bytes);
  await source.readInto(tensor.offset + offset, target);
  return target;
}

/** All values of a small tensor of F32, F16 or BF16, as f32. */
async function floatsOf(stored: Stored, offset = 0, bytes = stored.tensor.bytes): Promise<Float32Array> {
  const { blockBytes, decode } = formatOf(stored.tensor.format);
  const values = new Float32Array(bytes / blockBytes);
  decode(await read(stored, offset, bytes), 0, values, 0, values.length);
  return values;
}

/** A matrix of packed codes: `rows` of them, each of `columns` values. */
export interface MatrixSize {
  readonly rows: number;
  readonly columns: number;
}

/** Bytes of codes in two orders, and what changes in each of them. */
interface Move {
  /** Two codes a byte in the order of their columns, the first in the low half. */
  readonly from: Uint8Array;
  readonly at: number;
  /** As blocks have them: byte j holds the codes j, in its low half, and j + `half`. */
  readonly to: Uint8Array;
  readonly out: number;
  readonly half: 8 | 16;
  /** Bits of every byte that are turned over. */
  readonly flip: number;
}

/** Moves the codes of 2 · `half` columns from one order to the other. */
function spreadCodes({ from, at, to, out, half, flip }: Move): void {
  for (let k = 0; k < half / 2; k++) {
    const a = from[at + k] as number;
    const b = from[at + k + half / 2] as number;
    to[out + 2 * k] = ((a & 15) | ((b & 15) << 4)) ^ flip;
    to[out + 2 * k + 1] = ((a >> 4) | (b & 0xf0)) ^ flip;
  }
}

/**
 * NVFP4: packed codes [rows, columns / 2], a byte's low half first, and E4M3 scales [rows, columns / 16], as `NVFP4_32`. A
 * negative scale, which that has no place for, changes the signs of its codes.
 */
export function nvfp4View(codes: Stored, scales: Stored, { rows, columns }: MatrixSize): View {
  const blocks = columns / 32;
  return rowsView({
    rows,
    rowBytes: blocks * 18,
    async make(first, count, target) {
      const packed = await read(codes, (first * columns) / 2, (count * columns) / 2);
      const scaled = await read(scales, first * 2 * blocks, count * 2 * blocks);
      for (let block = 0; block < count * blocks; block++) {
        for (let group = 0; group < 2; group++) {
          const scale = scaled[2 * block + group] as number;
          target[18 * block + group] = scale & 127;
          const [at, out] = [16 * block + 8 * group, 18 * block + 2 + 8 * group];
          spreadCodes({ from: packed, at, to: target, out, half: 8, flip: scale > 127 ? 0x88 : 0 });
        }
      }
    },
  });
}

/** MXFP4: packed codes [rows, columns / 2] and E8M0 scales [rows, columns / 32], as `MXFP4`. */
export function mxfp4View(codes: Stored, scales: Stored, { rows, columns }: MatrixSize): View {
  const blocks = columns / 32;
  return rowsView({
    rows,
    rowBytes: blocks * 17,
    async make(first, count, target) {
      const packed = await read(codes, (first * columns) / 2, (count * columns) / 2);
      const scaled = await read(scales, first * blocks, count * blocks);
      for (let block = 0; block < count * blocks; block++) {
        target[17 * block] = scaled[block] as number;
        spreadCodes({ from: packed, at: 16 * block, to: target, out: 17 * block + 1, half: 16, flip: 0 });
      }
    },
  });
}

/** How far a scale of an FP8 matrix reaches, in rows and columns. */
export interface ScaleSpan {
  readonly rows: number;
  readonly columns: number;
}

/** FP8: E4M3 [rows, columns], and scales [⌈rows / span.rows⌉, ⌈columns / span.columns⌉], as blocks of so many columns. */
export function fp8View(
  codes: Stored,
  scales: Stored,
  { rows, columns, span, block }: MatrixSize & { readonly span: ScaleSpan; readonly block: 32 | 128 },
): View {
  const blocks = columns / block;
  const across = Math.ceil(columns / span.columns);
  const scaleBytes = formatOf(scales.tensor.format).blockBytes;
  const view: RowsView = {
    rows,
    rowBytes: blocks * (4 + block),
    async make(first, count, target) {
      const values = await read(codes, first * columns, count * columns);
      const top = Math.floor(first / span.rows);
      const tall = Math.floor((first + count - 1) / span.rows) + 1 - top;
      const factors = await floatsOf(scales, top * across * scaleBytes, tall * across * scaleBytes);
      const bytes = new Uint8Array(factors.buffer);
      let to = 0;
      for (let row = 0; row < count; row++) {
        const line = (Math.floor((first + row) / span.rows) - top) * across;
        for (let at = 0; at < columns; at += block) {
          const factor = 4 * (line + Math.floor(at / span.columns));
          target.set(bytes.subarray(factor, factor + 4), to);
          target.set(values.subarray(row * columns + at, row * columns + at + block), to + 4);
          to += 4 + block;
        }
      }
    },
  };
  return rowsView(view);
}

/** The f32 scale of a whole tensor: multiplied with its values, or what they are divided by. Absent: 1. */
export interface TensorScale {
  readonly stored: Stored;
  readonly divides: boolean;
}

/** [length] f32, each the product of the scales given for it. */
export function factorsView(factors: readonly (readonly (TensorScale | undefined)[])[]): View {
  const bytes = 4 * factors.length;
  return rowsView({
    rows: 1,
    rowBytes: bytes,
    async make(_first, _count, target) {
      const values = new Float32Array(factors.length);
      await Promise.all(
        factors.map(async (scales, index) => {
          const each = await Promise.all(scales.map((scale) => (scale === undefined ? 1 : factorOf(scale))));
          values[index] = each.reduce((product, scale) => product * scale, 1);
        }),
      );
      target.set(new Uint8Array(values.buffer));
    },
  });
}

async function factorOf({ stored, divides }: TensorScale): Promise<number> {
  const [scale] = await floatsOf(stored);
  return divides ? 1 / (scale as number) : (scale as number);
}
