/** Every weight format of the table against recorded vectors, GGML's own for its formats, and the encoders against the decoders. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { Refusal } from '../../src/errors.ts';
import type { QuantFormat } from '../../src/quant/index.ts';
import { formatBytes, formatOf, formats } from '../../src/quant/index.ts';
import { f32Of, readSafetensors, tensorOf } from '../support/safetensors.ts';

const folder = new URL('../fixtures/quant/', import.meta.url);

interface VectorRow {
  /** GGML's number; formats of safetensors alone have none. */
  readonly id?: number;
  readonly name: string;
  readonly blockSize: number;
  readonly blockBytes: number;
}

const index = JSON.parse(readFileSync(new URL('index.json', folder), 'utf8')) as readonly VectorRow[];

/** The formats that Conclave has promised: GGML's, and those of safetensors alone; the rest of the vectors' types must be refused by name. */
const promised = [
  'F32',
  'F16',
  'BF16',
  'Q4_0',
  'Q4_1',
  'Q5_0',
  'Q5_1',
  'Q8_0',
  'Q2_K',
  'Q3_K',
  'Q4_K',
  'Q5_K',
  'Q6_K',
  'IQ4_NL',
  'IQ4_XS',
  'MXFP4',
  'NVFP4',
  'NVFP4_32',
  'FP8_32',
  'FP8_128',
];

function vectorsOf(format: QuantFormat) {
  const row = index.find(({ name }) => name.toUpperCase() === format.id);
  assert.ok(row, `index.json has no type ${format.id}`);
  assert.equal(row.id, format.ggufType, format.id);
  return { row, tensors: readSafetensors(new URL(`${row.name}.safetensors`, folder)) };
}

/** Where two rows of floats differ in any bit: a message with the first few, or '' when they are equal. */
function bitDifferences(found: Float32Array, expected: Float32Array): string {
  assert.equal(found.length, expected.length);
  const foundBits = new Uint32Array(found.buffer, found.byteOffset, found.length);
  const expectedBits = new Uint32Array(expected.buffer, expected.byteOffset, expected.length);
  const lines: string[] = [];
  for (let i = 0; i < found.length && lines.length < 5; i++) {
    if (foundBits[i] !== expectedBits[i]) {
      lines.push(`value ${i}: found ${found[i]}, expected ${expected[i]}`);
    }
  }
  return lines.join('\n');
}

describe('the table of weight formats', () => {
  test('holds exactly the promised formats, each once', () => {
    assert.deepEqual(formats.map((format) => format.id).sort(), [...promised].sort());
  });

  test('states block sizes and type numbers as GGML does', () => {
    for (const format of formats) {
      const { row } = vectorsOf(format);
      assert.deepEqual(
        [row.name.toUpperCase(), row.blockSize, row.blockBytes],
        [format.id, format.blockLength, format.blockBytes],
      );
      assert.equal(formatBytes(format.id, 3 * format.blockLength), 3 * format.blockBytes);
    }
  });

  test('refuses every other type of the vectors by name', () => {
    const others = index.map((row) => row.name.toUpperCase()).filter((name) => !promised.includes(name));
    assert.equal(others.length, index.length - promised.length);
    for (const name of others) {
      assert.throws(
        () => formatOf(name),
        (error: unknown) => error instanceof Refusal && error.message.includes(name) && error.message.includes('Q4_K'),
      );
    }
  });

  test('every vector file is named in the index', () => {
    const files = readdirSync(folder).filter((file) => file.endsWith('.safetensors'));
    assert.deepEqual(files.sort(), index.map((row) => `${row.name}.safetensors`).sort());
  });
});

for (const format of formats) {
  describe(format.id, () => {
    const { tensors } = vectorsOf(format);

    for (const [bytesName, floatsName] of [
      ['bytes', 'floats'],
      ['random_bytes', 'random_floats'],
    ] as const) {
      test(`decodes ${bytesName} to ${floatsName}, bit for bit`, () => {
        const { bytes } = tensorOf(tensors, bytesName, 'U8');
        const expected = f32Of(tensors, floatsName);
        const blocks = bytes.length / format.blockBytes;
        assert.equal(blocks * format.blockLength, expected.length);
        const found = new Float32Array(expected.length);
        format.decode(bytes, 0, found, 0, blocks);
        assert.equal(bitDifferences(found, expected), '');
      });
    }

    test('decodes from any byte to any place of shared memory, and writes nothing else', () => {
      const { bytes } = tensorOf(tensors, 'random_bytes', 'U8');
      const expected = f32Of(tensors, 'random_floats');
      const blocks = 3;
      const values = blocks * format.blockLength;
      for (const shift of [1, 2, 3, 4]) {
        const moved = new Uint8Array(new SharedArrayBuffer(bytes.length + shift + 8), 8 - shift);
        moved.set(bytes, shift);
        const out = new Float32Array(new SharedArrayBuffer(4 * (values + 12)), 8, values + 10).fill(7);
        format.decode(moved, shift + format.blockBytes, out, 5, blocks);
        const first = format.blockLength;
        assert.equal(bitDifferences(out.slice(5, 5 + values), expected.slice(first, first + values)), '');
        assert.deepEqual([...out.subarray(0, 5), ...out.subarray(5 + values)], new Array(10).fill(7));
      }
    });
  });
}

test('a scale that is NaN makes its whole group NaN, a value only itself', () => {
  for (const [id, at, scale, from, to] of [
    ['MXFP4', 17, 255, 32, 64],
    ['NVFP4', 37, 0x7f, 80, 96],
    ['NVFP4', 37, 0xff, 80, 96],
    ['NVFP4_32', 19, 0x7f, 48, 64],
    ['NVFP4_32', 19, 0xff, 48, 64],
    ['FP8_32', 41, 0x7f, 33, 34],
    ['FP8_32', 41, 0xff, 33, 34],
    ['FP8_128', 131, 0xff, 127, 128],
  ] as const) {
    const format = formatOf(id);
    const bytes = new Uint8Array(2 * format.blockBytes).fill(0x33);
    bytes[at] = scale;
    const out = new Float32Array(2 * format.blockLength);
    format.decode(bytes, 0, out, 0, 2);
    out.forEach((value, i) => {
      assert.equal(Number.isNaN(value), i >= from && i < to, `${id}: value ${i} is ${value}`);
    });
  }
});

/** Half the distance of f16's subnormals: how far a tiny scale may lie from what was wanted. */
const half = 2 ** -25;

/**
 * The largest error that plain rounding may leave in a block: one step of its coarsest group, and what a tiny f16 scale
 * loses, times the largest integer that it is multiplied with.
 */
const steps: Readonly<Record<string, (block: Float32Array) => number>> = {
  F32: () => 0,
  F16: (block) => Math.max(2 ** -11 * largest(block), half),
  BF16: (block) => 2 ** -8 * largest(block),
  // The f16 scale adds up to 2^-11 of the largest value to half a step.
  Q8_0: (block) => (0.5 / 127 + 2 ** -11) * largest(block) + 127 * half,
  // Code 15 is worth 7 steps of the 8 that the other end has.
  Q4_0: (block) => (1 / 8 + 2 ** -11) * largest(block) + 8 * half,
  // The same of 31 and 16.
  Q5_0: (block) => (1 / 16 + 2 ** -11) * largest(block) + 16 * half,
  Q4_K: (block) => Math.max(...groups(block, 32).map(rangeWithZero)) / 15 + 63 * 16 * half,
  Q6_K: (block) => largest(block) / 31 + 127 * 32 * half,
  // The largest value may be nearly 8 scales, and the largest code is 6.
  MXFP4: (block) => largest(block) / 4,
};

function rangeWithZero(group: Float32Array): number {
  return Math.max(0, ...group) - Math.min(0, ...group);
}

function largest(block: Float32Array): number {
  return Math.max(...block.map(Math.abs));
}

function groups(block: Float32Array, length: number): Float32Array[] {
  return Array.from({ length: block.length / length }, (_, i) => block.subarray(length * i, length * (i + 1)));
}

describe('encoders', () => {
  const encoders = formats.filter((format) => format.encode !== undefined);

  test('exist for the formats that tests and benchmarks write', () => {
    assert.deepEqual(encoders.map((format) => format.id).sort(), Object.keys(steps).sort());
  });

  for (const format of encoders) {
    const { tensors } = vectorsOf(format);
    const source = f32Of(tensors, 'source');

    test(`${format.id}: decoding what was encoded is within a step, in the middle of larger arrays`, () => {
      // Hard blocks after the vectors' own: all zero, constant of either sign, one outlier, one-sided.
      const hard = [() => 0, () => 3, () => -3, (i: number) => (i === 17 ? -900 : 0.01), (i: number) => 5 + (i % 7)];
      const values = Float32Array.from([
        ...source,
        ...hard.flatMap((f) => Array.from({ length: 256 }, (_, i) => f(i))),
      ]);
      const blocks = values.length / format.blockLength;
      const padded = new Float32Array(values.length + 6);
      padded.set(values, 3);
      const out = new Uint8Array(blocks * format.blockBytes + 10).fill(0xa5);
      format.encode?.(padded, 3, out, 5, blocks);
      assert.deepEqual([...out.subarray(0, 5), ...out.subarray(-5)], new Array(10).fill(0xa5));
      const decoded = new Float32Array(values.length);
      format.decode(out, 5, decoded, 0, blocks);
      for (let block = 0; block < blocks; block++) {
        const from = block * format.blockLength;
        const original = values.subarray(from, from + format.blockLength);
        const step = steps[format.id]?.(original) ?? 0;
        original.forEach((value, i) => {
          const found = decoded[from + i] as number;
          assert.ok(
            Math.abs(found - value) <= step,
            `block ${block}, value ${i}: ${value} became ${found}, step ${step}`,
          );
        });
      }
    });

    if (['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q5_0', 'MXFP4'].includes(format.id)) {
      test(`${format.id}: rounds as GGML does, byte for byte`, () => {
        const { bytes } = tensorOf(tensors, 'bytes', 'U8');
        const out = new Uint8Array(bytes.length);
        format.encode?.(source, 0, out, 0, bytes.length / format.blockBytes);
        assert.deepEqual(out, bytes);
      });
    }
  }
});
