/**
 * Random weights in every format (bits at random, scales of a sane size, so that every code counts and nothing
 * overflows), and rows of activations that are hard on a kernel.
 */

import assert from 'node:assert/strict';
import { type FormatId, formatBytes, formatOf } from '../../../src/quant/index.ts';
import { writeF16 } from '../../../src/quant/scalars.ts';

/** Numbers in [0, 1) from a seed, so that a failure comes again (mulberry32). */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** `count` values of mean 0 and variance 1 (Box–Muller). */
export function gaussians(count: number, next: () => number): Float32Array {
  return Float32Array.from(
    { length: count },
    () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next()),
  );
}

type Field = readonly [at: number, kind: 'scale' | 'minimum' | 'e8m0' | 'e4m3' | 'f32' | 'finite fp8'];

/** The fields of each format's block that are not codes; none for a format that is encoded value by value. */
const fields: Readonly<Record<FormatId, readonly Field[]>> = {
  F32: [],
  F16: [],
  BF16: [],
  Q4_0: [[0, 'scale']],
  Q4_1: [
    [0, 'scale'],
    [2, 'minimum'],
  ],
  Q5_0: [[0, 'scale']],
  Q5_1: [
    [0, 'scale'],
    [2, 'minimum'],
  ],
  Q8_0: [[0, 'scale']],
  Q2_K: [
    [80, 'scale'],
    [82, 'minimum'],
  ],
  Q3_K: [[108, 'scale']],
  Q4_K: [
    [0, 'scale'],
    [2, 'minimum'],
  ],
  Q5_K: [
    [0, 'scale'],
    [2, 'minimum'],
  ],
  Q6_K: [[208, 'scale']],
  IQ4_NL: [[0, 'scale']],
  IQ4_XS: [[0, 'scale']],
  MXFP4: [[0, 'e8m0']],
  NVFP4: [
    [0, 'e4m3'],
    [1, 'e4m3'],
    [2, 'e4m3'],
    [3, 'e4m3'],
  ],
  NVFP4_32: [
    [0, 'e4m3'],
    [1, 'e4m3'],
  ],
  FP8_32: fp8(32),
  FP8_128: fp8(128),
};

/** A scale, then bytes of which two are no numbers. */
function fp8(length: number): readonly Field[] {
  return [[0, 'f32'], ...Array.from({ length }, (_, i): Field => [4 + i, 'finite fp8'])];
}

/** Whole blocks of a format that hold `values` values; one block in eight has the scale 0. */
export function randomWeight(format: FormatId, values: number, seed: number): Uint8Array<ArrayBuffer> {
  const own = fields[format];
  assert.ok(own !== undefined, `no random blocks for ${format}: say in blocks.ts where its scales are`);
  const next = random(seed);
  const { blockBytes, encode } = formatOf(format);
  const bytes = new Uint8Array(formatBytes(format, values));
  if (own.length === 0) {
    encode?.(
      gaussians(values, next).map((x) => x * 0.1),
      0,
      bytes,
      0,
      values,
    );
    return bytes;
  }
  for (let i = 0; i < bytes.length; i++) bytes[i] = next() * 256;
  for (let block = 0; block < bytes.length; block += blockBytes) {
    const zero = next() < 1 / 8;
    for (const [at, kind] of own) writeField(bytes, block + at, kind, zero ? () => Number.NaN : next);
  }
  return bytes;
}

/** Blocks whose codes are all zeros or all ones, one row after the other, and the rest as in {@link randomWeight}. */
export function extremeWeight(format: FormatId, [rows, columns]: readonly [number, number]): Uint8Array<ArrayBuffer> {
  const { blockBytes } = formatOf(format);
  const bytes = new Uint8Array(formatBytes(format, rows * columns));
  const next = random(rows);
  for (let block = 0; block < bytes.length; block += blockBytes) {
    const row = Math.floor(block / (bytes.length / rows));
    bytes.fill(row % 2 === 0 ? 0 : 255, block, block + blockBytes);
    for (const [at, kind] of fields[format]) writeField(bytes, block + at, kind, next);
  }
  return bytes;
}

/** A NaN from `next` asks for the least scale there is. */
function writeField(bytes: Uint8Array, at: number, kind: Field[1], next: () => number): void {
  const x = next();
  const zero = Number.isNaN(x);
  if (kind === 'scale') writeF16(bytes, at, zero ? 0 : (x < 0.5 ? -1 : 1) * (0.001 + 0.01 * next()));
  else if (kind === 'minimum') writeF16(bytes, at, zero ? 0 : 0.08 * (x - 0.5));
  else if (kind === 'f32') new DataView(bytes.buffer).setFloat32(at, zero ? 0 : 0.0001 + 0.001 * x, true);
  else if (kind === 'finite fp8') bytes[at]! -= ((bytes[at] as number) & 127) === 127 ? 1 : 0;
  // 2^-12 … 2^-5, or so little that a block is nothing beside the others, yet no product leaves the range of f32.
  else if (kind === 'e8m0') bytes[at] = zero ? 60 : 115 + Math.floor(8 * x);
  // 2^-6 … 2^2; the sign bit means nothing.
  else bytes[at] = zero ? 128 : 8 + Math.floor(64 * x) + (next() < 0.5 ? 128 : 0);
}

/** The values of whole blocks. */
export function decoded(format: FormatId, bytes: Uint8Array): Float32Array {
  const { blockBytes, blockLength, decode } = formatOf(format);
  const blocks = bytes.length / blockBytes;
  const values = new Float32Array(blocks * blockLength);
  decode(bytes, 0, values, 0, blocks);
  return values;
}

/**
 * Kinds of activation rows. Those called exact are whole multiples of a power of two, ±127 of which is in every 32
 * values: int8 activations hold them without loss, so an int8 kernel must be as good on them as an f32 one.
 */
export const rowKinds = [
  'normal',
  'exact',
  'exact outlier',
  'zero',
  'exact huge',
  'exact tiny',
  'zero block',
  'mixed',
] as const;
export type RowKind = (typeof rowKinds)[number];

export function kindOfRow(row: number): RowKind {
  return rowKinds[row % rowKinds.length] as RowKind;
}

/** [rows, width] f32, the kinds in turn. */
export function nastyRows(rows: number, width: number, seed: number): Float32Array<ArrayBuffer> {
  const next = random(seed);
  const values = new Float32Array(rows * width);
  for (let row = 0; row < rows; row++) values.set(nastyRow(kindOfRow(row), width, next), row * width);
  return values;
}

export function nastyRow(kind: RowKind, width: number, next: () => number): Float32Array {
  const exact = (unit: number, spread: number) =>
    Float32Array.from({ length: width }, (_, i) => {
      // The place of the ±127 moves from block to block.
      const full = i % 32 === (7 * Math.floor(i / 32)) % Math.min(32, width);
      return unit * (full ? 127 * (next() < 0.5 ? -1 : 1) : Math.round((2 * next() - 1) * spread));
    });
  const normal = gaussians(width, next);
  switch (kind) {
    case 'normal':
      return normal;
    case 'exact':
      return exact(2 ** -7, 127);
    case 'exact outlier':
      return exact(2 ** -3, 1);
    case 'zero':
      return new Float32Array(width);
    case 'exact huge':
      return exact(2 ** 20, 127);
    case 'exact tiny':
      return exact(2 ** -50, 127);
    case 'zero block':
      return normal.map((x, i) => (Math.floor(i / 32) % 2 === 0 ? 0 : x));
    // Blocks of very different sizes side by side.
    case 'mixed':
      return normal.map((x, i) => x * 10 ** -(Math.floor(i / 32) % 3));
  }
}
