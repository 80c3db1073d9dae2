/**
 * Putting a checkpoint's codes and scales into blocks changes no value: each format against the checkpoint's own definition,
 * written out value by value, with every code, every scale of a byte, ragged edges, and ranges that begin anywhere.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { TensorInfo } from '../../src/format/model-file.ts';
import { memorySource } from '../../src/format/source.ts';
import type { View } from '../../src/format/views.ts';
import { factorsView, fp8View, mxfp4View, nvfp4View, type Stored } from '../../src/model/hugging-face/repack.ts';
import { formatOf } from '../../src/quant/index.ts';
import { e4m3ToF32, e8m0ToF32, f32ToBf16 } from '../../src/quant/scalars.ts';
import { random } from './support/blocks.ts';

/** A tensor that stands somewhere in its file. */
function stored(format: string, shape: readonly number[], bytes: Uint8Array): Stored {
  const file = new Uint8Array(bytes.length + 24);
  file.set(bytes, 11);
  const tensor: TensorInfo = { name: 't', format, shape, source: 0, offset: 11, bytes: bytes.length };
  return { tensor, source: memorySource(file) };
}

const floats = (values: ArrayLike<number>) => new Uint8Array(Float32Array.from(values).buffer);
const halves = (values: readonly number[]) => new Uint8Array(Uint16Array.from(values, f32ToBf16).buffer);
const bytesOf = (count: number, make: (i: number) => number) => Uint8Array.from({ length: count }, (_, i) => make(i));

async function valuesOf(format: string, view: View): Promise<Float32Array> {
  const { blockBytes, blockLength, decode } = formatOf(format);
  const bytes = new Uint8Array(view.bytes);
  // In two reads that meet within a row.
  const middle = Math.floor(bytes.length / 3);
  await view.readInto(0, bytes.subarray(0, middle));
  await view.readInto(middle, bytes.subarray(middle));
  const values = new Float32Array((bytes.length / blockBytes) * blockLength);
  decode(bytes, 0, values, 0, bytes.length / blockBytes);
  return values;
}

/** The same numbers; NaN is NaN, and 0 has no sign where codes have none. */
function same(found: Float32Array, expected: (i: number) => number): void {
  found.forEach((value, i) => {
    const want = Math.fround(expected(i));
    assert.ok(
      value === want || (Number.isNaN(value) && Number.isNaN(want)),
      `value ${i}: found ${value}, expected ${want}`,
    );
  });
}

const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
const e2m1 = (code: number) => (code & 8 ? -1 : 1) * (E2M1[code & 7] as number);
/** Codes [rows, columns] packed two to a byte, the first in the low half. */
const codeAt = (packed: Uint8Array, i: number) => ((packed[i >> 1] as number) >> (4 * (i & 1))) & 15;

test('NVFP4: all 256 scales, subnormal, negative and NaN, with all codes', async () => {
  // 160 columns: not whole blocks of 64.
  const [rows, columns] = [26, 160];
  const next = random(5);
  const packed = bytesOf((rows * columns) / 2, () => next() * 256);
  const scales = bytesOf((rows * columns) / 16, (i) => i & 255);
  const view = nvfp4View(stored('U8', [rows, columns / 2], packed), stored('F8_E4M3', [rows, columns / 16], scales), {
    rows,
    columns,
  });
  const found = await valuesOf('NVFP4_32', view);
  assert.equal(found.length, rows * columns);
  same(found, (i) => e4m3ToF32(scales[i >> 4] as number) * e2m1(codeAt(packed, i)));
});

test('MXFP4: all 256 scales, 0 and 255 among them, with all codes', async () => {
  const [rows, columns] = [32, 256];
  const next = random(6);
  const packed = bytesOf((rows * columns) / 2, () => next() * 256);
  const scales = bytesOf((rows * columns) / 32, (i) => i & 255);
  const view = mxfp4View(stored('U8', [rows, columns / 2], packed), stored('U8', [rows, columns / 32], scales), {
    rows,
    columns,
  });
  same(await valuesOf('MXFP4', view), (i) => e8m0ToF32(scales[i >> 5] as number) * e2m1(codeAt(packed, i)));
});

test('FP8: all 256 codes, with scales of blocks ragged at both edges, of rows, and of all', async () => {
  const [rows, columns] = [200, 160];
  const codes = bytesOf(rows * columns, (i) => i * 3);
  const stores = (format: string, shape: number[], bytes: Uint8Array) => stored(format, shape, bytes);
  const blocks = [0.5, -3e-5, 1e-30, 7];
  for (const [span, shape, scales, bytes, format] of [
    [{ rows: 128, columns: 128 }, [2, 2], blocks, floats(blocks), 'F32'],
    [{ rows: 1, columns }, [rows, 1], Array.from({ length: rows }, (_, row) => 2 ** -(row % 40)), undefined, 'BF16'],
    [{ rows, columns }, [], [0.037], floats([0.037]), 'F32'],
  ] as const) {
    const stored8 = stores('F8_E4M3', [rows, columns], codes);
    const scaled = stores(format, [...shape], bytes ?? halves([...scales]));
    const view = fp8View(stored8, scaled, { rows, columns, span, block: 32 });
    const across = Math.ceil(columns / span.columns);
    same(await valuesOf('FP8_32', view), (i) => {
      const [row, column] = [Math.floor(i / columns), i % columns];
      const scale = scales[Math.floor(row / span.rows) * across + Math.floor(column / span.columns)] as number;
      return Math.fround(scale) * e4m3ToF32(codes[i] as number);
    });
  }
  const wide = fp8View(stored('F8_E4M3', [3, 256], codes.subarray(0, 768)), stored('F32', [1, 2], floats([3, 5])), {
    rows: 3,
    columns: 256,
    span: { rows: 128, columns: 128 },
    block: 128,
  });
  same(await valuesOf('FP8_128', wide), (i) => (i % 256 < 128 ? 3 : 5) * e4m3ToF32(codes[i] as number));
});

test('scales of whole tensors: multiplied, divided by, several as one, and none', async () => {
  const scale = (value: number, divides: boolean) => ({ stored: stored('F32', [1], floats([value])), divides });
  const view = factorsView([[scale(0.3, false)], [scale(8, true), scale(0.25, false)], [undefined], [scale(3, true)]]);
  const bytes = new Uint8Array(view.bytes);
  await view.readInto(0, bytes);
  assert.deepEqual([...new Float32Array(bytes.buffer)], [Math.fround(0.3), 1 / 32, 1, Math.fround(1 / 3)]);
});
