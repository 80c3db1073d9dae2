/**
 * Experts that a checkpoint holds several in one tensor, in each order of rows and with rows and columns exchanged, plain and
 * in MXFP4, are the same matrices as those stored one by one.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CorruptFileError } from '../../src/errors.ts';
import type { ModelFile, TensorInfo } from '../../src/format/model-file.ts';
import { memorySource } from '../../src/format/source.ts';
import type { Dialect } from '../../src/model/hugging-face/dialect.ts';
import { RecentMatrices } from '../../src/model/hugging-face/fused.ts';
import { type NamedTensors, nameTensors } from '../../src/model/hugging-face/name-tensors.ts';
import type { Quantisation } from '../../src/model/hugging-face/quantisation.ts';
import { tensorNames } from '../../src/model/hugging-face/tensor-names.ts';
import { formatOf } from '../../src/quant/index.ts';

const [EXPERTS, INNER, HIDDEN] = [3, 5, 64];
const at = 'model.layers.7.mlp.experts';
const parts = ['blk.N.ffn_gate_exps.weight', 'blk.N.ffn_up_exps.weight'];

/** A number of its own for every value, which f32 holds. */
const gate = (expert: number, row: number, column: number) => 1 + ((expert * INNER + row) * HIDDEN + column) * 2;
const up = (expert: number, row: number, column: number) => -gate(expert, row, column);

function fileOf(
  tensors: Readonly<Record<string, { format: string; shape: readonly number[]; bytes: Uint8Array }>>,
): ModelFile {
  let offset = 3;
  const all = Object.entries(tensors).map(([name, { format, shape, bytes }]): TensorInfo => {
    const tensor = { name, format, shape, source: 0, offset, bytes: bytes.length };
    offset += bytes.length + 5;
    return tensor;
  });
  const file = new Uint8Array(offset);
  for (const tensor of all) file.set((tensors[tensor.name] as { bytes: Uint8Array }).bytes, tensor.offset);
  return {
    container: 'safetensors',
    version: 0,
    name: 'a file',
    metadata: new Map(),
    tensors: new Map(all.map((tensor) => [tensor.name, tensor])),
    sources: [memorySource(file)],
    async close() {},
  };
}

const floats = (count: number, value: (i: number) => number) =>
  new Uint8Array(Float32Array.from({ length: count }, (_, i) => value(i)).buffer);

/** A tensor's values, read in ranges of so many bytes. */
async function valuesOf({ tensors, sources }: NamedTensors, name: string, step = 1000): Promise<Float32Array> {
  const tensor = tensors.get(name);
  assert.ok(tensor !== undefined, `${name} is not among ${[...tensors.keys()].join(', ')}`);
  const bytes = new Uint8Array(tensor.bytes);
  for (let from = 0; from < bytes.length; from += step) {
    await sources[tensor.source]?.readInto(tensor.offset + from, bytes.subarray(from, from + step));
  }
  const { blockBytes, blockLength, decode } = formatOf(tensor.format);
  const values = new Float32Array((bytes.length / blockBytes) * blockLength);
  decode(bytes, 0, values, 0, bytes.length / blockBytes);
  return values;
}

type Value = typeof gate;
const stack = (value: Value) =>
  Float32Array.from({ length: EXPERTS * INNER * HIDDEN }, (_, i) =>
    value(Math.floor(i / (INNER * HIDDEN)), Math.floor(i / HIDDEN) % INNER, i % HIDDEN),
  );
/** The row of all of an expert's: which part, which row of it. */
const rowOf = (order: 'halves' | 'turns', row: number) =>
  order === 'turns' ? ([row % 2, row >> 1] as const) : ([row < INNER ? 0 : 1, row % INNER] as const);
const whole = (order: 'halves' | 'turns', expert: number, row: number, column: number) => {
  const [part, own] = rowOf(order, row);
  return (part === 0 ? gate : up)(expert, own, column);
};

for (const order of ['halves', 'turns'] as const) {
  for (const transposed of [undefined, true] as const) {
    test(`gate and up in ${order}${transposed ? ', rows and columns exchanged' : ''}`, async () => {
      const shape = transposed ? [EXPERTS, HIDDEN, 2 * INNER] : [EXPERTS, 2 * INNER, HIDDEN];
      const bytes = floats(EXPERTS * 2 * INNER * HIDDEN, (i) => {
        const expert = Math.floor(i / (2 * INNER * HIDDEN));
        const inside = i % (2 * INNER * HIDDEN);
        const [row, column] = transposed
          ? [inside % (2 * INNER), Math.floor(inside / (2 * INNER))]
          : [Math.floor(inside / HIDDEN), inside % HIDDEN];
        return whole(order, expert, row, column);
      });
      const dialect: Pick<Dialect, 'fused'> = {
        fused: { 'model.layers.N.mlp.experts.gate_up_proj': { parts, rows: order, transposed } },
      };
      const named = nameTensors(
        fileOf({ [`${at}.gate_up_proj`]: { format: 'F32', shape, bytes } }),
        tensorNames(dialect),
        undefined,
      );
      for (const [part, value] of [
        ['gate', gate],
        ['up', up],
      ] as const) {
        if (named.tensors.has(`blk.7.ffn_${part}_exps.weight`)) {
          assert.deepEqual(named.tensors.get(`blk.7.ffn_${part}_exps.weight`)?.shape, [EXPERTS, INNER, HIDDEN]);
          for (const step of [24, 1000, 1 << 20]) {
            assert.deepEqual(
              await valuesOf(named, `blk.7.ffn_${part}_exps.weight`, step),
              stack(value),
              `${part}, ${step}`,
            );
          }
          continue;
        }
        // Ranges of the file are tensors of an expert each.
        const each = await Promise.all(
          Array.from({ length: EXPERTS }, (_, expert) => valuesOf(named, `blk.7.ffn_${part}.${expert}.weight`)),
        );
        assert.deepEqual(
          each.flatMap((values) => [...values]),
          [...stack(value)],
        );
      }
    });
  }
}

test('biases of experts in turns are stacks of vectors', async () => {
  const biases = ['blk.N.ffn_gate_exps.bias', 'blk.N.ffn_up_exps.bias'];
  const name = `${at}.gate_up_proj_bias`;
  const dialect: Pick<Dialect, 'fused'> = {
    fused: { 'model.layers.N.mlp.experts.gate_up_proj_bias': { parts: biases, rows: 'turns' } },
  };
  const bytes = floats(EXPERTS * 2 * INNER, (i) => i);
  const named = nameTensors(
    fileOf({ [name]: { format: 'F32', shape: [EXPERTS, 2 * INNER], bytes } }),
    tensorNames(dialect),
    undefined,
  );
  assert.deepEqual(named.tensors.get('blk.7.ffn_up_exps.bias')?.shape, [EXPERTS, INNER]);
  assert.deepEqual(
    [...(await valuesOf(named, 'blk.7.ffn_gate_exps.bias'))],
    Array.from({ length: EXPERTS * INNER }, (_, i) => 2 * i),
  );
  assert.deepEqual(
    [...(await valuesOf(named, 'blk.7.ffn_up_exps.bias'))],
    Array.from({ length: EXPERTS * INNER }, (_, i) => 2 * i + 1),
  );
});

const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6];
const mxfp4: Quantisation = { schemeOf: () => ({ kind: 'mxfp4 stack' }) };
const turns = {
  fused: { 'model.layers.N.mlp.experts.gate_up_proj': { parts, rows: 'turns', transposed: true } },
} as const;
const [rows, across] = [2 * INNER, HIDDEN / 32];
const blocks = {
  format: 'U8',
  shape: [EXPERTS, rows, across, 16],
  bytes: Uint8Array.from({ length: EXPERTS * rows * across * 16 }, (_, i) => i * 41),
};
const scales = {
  format: 'U8',
  shape: [EXPERTS, rows, across],
  bytes: Uint8Array.from({ length: EXPERTS * rows * across }, (_, i) => 120 + (i % 13)),
};

test('stacks of MXFP4: codes and scales of rows in turns', async () => {
  const file = fileOf({ [`${at}.gate_up_proj_blocks`]: blocks, [`${at}.gate_up_proj_scales`]: scales });
  const named = nameTensors(file, tensorNames(turns), mxfp4);
  assert.equal(named.tensors.size, 2);
  for (const [part, name] of ['gate', 'up'].entries()) {
    const found = await valuesOf(named, `blk.7.ffn_${name}_exps.weight`, 170);
    found.forEach((value, i) => {
      const row = 2 * Math.floor(i / HIDDEN) + part;
      const column = i % HIDDEN;
      const byte = blocks.bytes[row * (HIDDEN / 2) + (column >> 1)] as number;
      const scale = 2 ** ((scales.bytes[row * across + (column >> 5)] as number) - 127);
      assert.equal(value, scale * (E2M1[(byte >> (4 * (column & 1))) & 15] as number), `${name} ${i}`);
    });
  }
});

test('stacks that do not fit are told by name', () => {
  const named =
    (tensors: Parameters<typeof fileOf>[0], quantisation: Quantisation | undefined = mxfp4) =>
    () =>
      nameTensors(fileOf(tensors), tensorNames(turns), quantisation);
  const [codes, apart] = [`${at}.gate_up_proj_blocks`, `${at}.gate_up_proj_scales`];
  const corrupt = (mention: RegExp) => (error: unknown) =>
    error instanceof CorruptFileError && mention.test(error.message);
  assert.throws(named({ [codes]: blocks }), corrupt(/gate_up_proj_blocks .* its scales .* are missing/));
  assert.throws(named({ [codes]: blocks, [apart]: scales }, { schemeOf: () => undefined }), corrupt(/nothing says so/));
  assert.throws(named({ 'x.y_blocks': blocks, 'x.y_scales': scales }), corrupt(/x\.y_blocks/));
  assert.throws(
    named({ [codes]: { ...blocks, shape: [EXPERTS, rows, across * 2, 8] }, [apart]: scales }),
    corrupt(/expected U8 \[3, 10, 4, 16\]/),
  );
  assert.throws(
    named({ [codes]: blocks, [apart]: { ...scales, shape: [EXPERTS, rows * across] } }),
    corrupt(/_scales is U8 \[3, 20\]/),
  );
  const none = { format: 'U8', shape: [0, rows, across, 16], bytes: new Uint8Array() };
  assert.throws(
    named({ [codes]: none, [apart]: { ...none, shape: [0, rows, across] } }),
    corrupt(/expected \[experts/),
  );
  for (const shape of [[6], [EXPERTS, 3, HIDDEN, 1], [0, 4, 4], [1, 64, 3]]) {
    const bytes = new Uint8Array(4 * shape.reduce((a, b) => a * b, 1));
    assert.throws(
      named({ [`${at}.gate_up_proj`]: { format: 'F32', shape, bytes } }),
      corrupt(/expected \[experts/),
      `${shape}`,
    );
  }
});

test('a few matrices are kept, the ones asked for last, and none that could not be read', async () => {
  const recent = new RecentMatrices(2);
  const reads: string[] = [];
  const get = (name: string) =>
    recent.get(name, async () => {
      reads.push(name);
      if (name === 'bad') throw new Error('no');
      return new Uint8Array(1);
    });
  for (const name of ['a', 'b', 'a', 'c', 'a', 'b']) await get(name);
  assert.deepEqual(reads, ['a', 'b', 'c', 'b']);
  await assert.rejects(get('bad'));
  await assert.rejects(get('bad'));
  assert.equal(reads.filter((name) => name === 'bad').length, 2);
});
