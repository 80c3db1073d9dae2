/** The synthetic models: a whole small one on disk, and the layout of the large ones. */

import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { writeSynthetic } from '../../bench/synthetic/write.ts';
import type { ModelFile, TensorInfo } from '../format/model-file.ts';
import { openModelFile } from '../format/open.ts';
import { type ByteSource, periodOf, type Repetition } from '../format/source.ts';
import { readModel } from '../model/read-model.ts';
import { nodePlatform } from '../platform/node.ts';
import { formatBytes, formatOf } from '../quant/index.ts';
import { hasMoreBits, metadataOf, tensorsOf } from './layout.ts';
import { type Shape, shapes } from './shapes.ts';
import { syntheticModel } from './source.ts';

describe('tiny-moe on disk', () => {
  let folder: string;
  let path: string;
  let file: ModelFile;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'conclave-synthetic-'));
    path = join(folder, 'tiny.gguf');
    await writeSynthetic('tiny-moe', path);
    file = await openModelFile(await nodePlatform.openSource(path));
  });

  after(async () => {
    await file.close();
    await rm(folder, { recursive: true });
  });

  test('opens, with every tensor of the layout in its format and shape', () => {
    const found = [...file.tensors.values()].map(({ name, format, shape }) => ({ name, format, shape: [...shape] }));
    const expected = tensorsOf(shapes['tiny-moe'] as Shape).map(({ name, format, shape }) => ({ name, format, shape }));
    assert.deepEqual(found, expected);
    assert.equal(file.metadata.get('general.architecture')?.value, 'qwen3moe');
  });

  test('has finite weights of about 1/√columns, norms of about 1, embeddings of about ±1, and no two equal rows', async () => {
    for (const tensor of file.tensors.values()) {
      const rows = await rowsOf(file, tensor);
      const columns = tensor.shape.at(-1) as number;
      const values = rows.flatMap((row) => [...row]);
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
      const expectedMean = tensor.name.includes('norm') ? 1 : 0;
      const expectedDeviation = tensor.name.includes('norm') ? 0.1 : tensor.name.includes('embd') ? 1 : columns ** -0.5;
      // The smallest tensor has 64 values: their deviation lies within 30 % and their mean within 4 errors of the mean.
      assert.ok(Math.abs(deviation / expectedDeviation - 1) < 0.3, `${tensor.name}: deviation ${deviation}`);
      assert.ok(
        Math.abs(mean - expectedMean) < (4 * deviation) / Math.sqrt(values.length) + 0.002,
        `${tensor.name}: ${mean}`,
      );
      assert.equal(new Set(rows.map((row) => row.join())).size, rows.length, `${tensor.name} has equal rows`);
    }
  });

  test('is the same file every time, of the size that was returned', async () => {
    const again = join(folder, 'again.gguf');
    assert.equal(await writeSynthetic('tiny-moe', again), (await stat(path)).size);
    assert.deepEqual(await readFile(again), await readFile(path));
  });
});

describe('qwen3-30b-a3b-6l, whose large tensors repeat', () => {
  let file: ModelFile;
  let source: ByteSource;

  before(async () => {
    file = await openModelFile(syntheticModel('qwen3-30b-a3b-6l'));
    [source] = file.sources as [ByteSource];
  });

  const bytesAt = async (offset: number, length: number) => {
    const bytes = new Uint8Array(length);
    await source.readInto(offset, bytes);
    return bytes;
  };
  const rowBytesOf = ({ format, shape }: TensorInfo) => formatBytes(format, shape.at(-1) as number);

  test('after whole rows, wherever one looks', async () => {
    const repeats = source.repeats ?? [];
    assert.ok(repeats.length > 30);
    const random = randomWholes();
    for (const { offset, bytes, period } of repeats) {
      const tensor = [...file.tensors.values()].find((each) => each.offset === offset) as TensorInfo;
      assert.equal(tensor.bytes, bytes);
      assert.equal(period % rowBytesOf(tensor), 0, `${tensor.name}: a period of ${period}`);
      const length = Math.min(3000, bytes - period);
      const last = bytes - period - length;
      for (const at of [0, last, ...Array.from({ length: 4 }, () => random(last))]) {
        const times = 1 + random(Math.floor((bytes - at - length) / period));
        const later = await bytesAt(offset + at + times * period, length);
        assert.deepEqual(later, await bytesAt(offset + at, length), tensor.name);
      }
    }
  });

  test('read at once or a little at a time, a tensor is the same', async () => {
    const { offset, bytes, period } = (source.repeats ?? []).at(-1) as Repetition;
    const length = Math.min(bytes - 1001, 5 * period + 777);
    const whole = await bytesAt(offset + 1001, length);
    for (let at = 0; at < length; at += 100_003) {
      const part = await bytesAt(offset + 1001 + at, Math.min(100_003, length - at));
      assert.equal(Buffer.compare(part, whole.subarray(at, at + part.length)), 0, `at ${at}`);
    }
  });

  test('no two rows of a period alike, nor any two experts; routers are all their own', async () => {
    const experts = file.tensors.get('blk.1.ffn_down_exps.weight') as TensorInfo;
    const [count = 0, rows = 0] = experts.shape;
    const rowBytes = rowBytesOf(experts);
    const period = periodOf(source, experts.offset, experts.bytes) as number;
    const rowsOfPeriod = new Set<string>();
    const whole = await bytesAt(experts.offset, period);
    for (let at = 0; at < period; at += rowBytes) rowsOfPeriod.add(whole.subarray(at, at + rowBytes).join());
    assert.equal(rowsOfPeriod.size, period / rowBytes);
    const firstRows = await Promise.all(
      Array.from({ length: count }, (_, expert) => bytesAt(experts.offset + expert * rows * rowBytes, rowBytes)),
    );
    assert.equal(new Set(firstRows.map((row) => row.join())).size, count);
    const router = file.tensors.get('blk.1.ffn_gate_inp.weight') as TensorInfo;
    assert.equal(periodOf(source, router.offset, router.bytes), undefined);
    assert.equal(new Set((await rowsOf(file, router)).map((row) => row.join())).size, count);
  });
});

describe('vocabularies', () => {
  for (const [name, shape] of Object.entries(shapes)) {
    test(`${name}: distinct tokens of the stated number, every merge made of and making tokens, specials in place`, () => {
      const metadata = metadataOf(name, shape);
      const list = (key: string) => Array.from(metadata[`tokenizer.ggml.${key}`]?.value as ArrayLike<string | number>);
      const tokens = list('tokens') as string[];
      const ids = new Map(tokens.map((token, id) => [token, id]));
      assert.equal(tokens.length, shape.vocabulary);
      assert.equal(ids.size, shape.vocabulary);
      for (const merge of list('merges') as string[]) {
        const [left, right] = merge.split(' ') as [string, string];
        const made = ids.get(left + right);
        assert.ok(made !== undefined, `${merge} makes no token`);
        assert.ok(
          (ids.get(left) ?? Infinity) < made && (ids.get(right) ?? Infinity) < made,
          `${merge} comes too early`,
        );
      }
      const types = list('token_type');
      const specials = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'].map((token) => ids.get(token));
      assert.deepEqual(
        specials,
        [0, 1, 2].map((i) => shape.firstSpecial + i),
      );
      assert.deepEqual(
        types.flatMap((type, id) => (type === 3 ? [id] : [])),
        specials,
      );
      assert.equal(metadata['tokenizer.ggml.eos_token_id']?.value, ids.get('<|im_end|>'));
    });
  }
});

describe('layout', () => {
  test('Q4_K_M keeps more bits in the first and last eighth of the layers and in every third between', () => {
    const layersOf = (layers: number) =>
      Array.from({ length: layers }, (_, i) => i).filter((i) => hasMoreBits(i, layers));
    assert.deepEqual(layersOf(6), [2, 5]);
    assert.deepEqual(layersOf(5), [2, 4]);
    assert.deepEqual(
      layersOf(48),
      [0, 1, 2, 3, 4, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35, 38, 41, 42, 43, 44, 45, 46, 47],
    );
  });

  // What the models' cards say, and what their Q4_K_M files weigh without vocabularies (GLM's has a layer more), in billions.
  for (const [name, parameters, gigabytes] of [
    ['qwen3-30b-a3b', '30.53', '18.55'],
    ['olmoe-1b-7b', '6.92', '4.21'],
    ['gpt-oss-20b', '20.91', '12.10'],
    ['glm-4.5-air', '106.85', '70.44'],
    ['qwen3-8b', '8.19', '5.02'],
    ['llama-3.1-8b', '8.03', '4.91'],
  ] as const) {
    test(`${name} has as many parameters and bytes as the real model`, () => {
      const sizes = tensorsOf(shapes[name] as Shape).map(({ format, shape }) => {
        const values = shape.reduce((product, n) => product * n, 1);
        return { values, bytes: formatBytes(format, values) };
      });
      const billions = (sum: number) => (sum / 1e9).toFixed(2);
      assert.equal(billions(sizes.reduce((sum, size) => sum + size.values, 0)), parameters);
      assert.equal(billions(sizes.reduce((sum, size) => sum + size.bytes, 0)), gigabytes);
    });
  }

  for (const [name, shape] of Object.entries(shapes)) {
    test(`${name} is read by its family, every key and tensor of it, to the sizes of the shape`, async () => {
      const file = await openModelFile(syntheticModel(name));
      const { spec, ignored } = readModel(file);
      // The width of dense layers where there are none.
      assert.deepEqual(
        ignored.map((each) => each.name),
        ['qwen3moe', 'gpt-oss'].includes(shape.architecture) ? [`${shape.architecture}.feed_forward_length`] : [],
      );
      assert.equal(spec.architecture, shape.architecture);
      assert.equal(spec.vocabulary, shape.vocabulary);
      const last = spec.layers.at(-1);
      assert.equal(spec.layers.length, shape.layers);
      const { heads, kvHeads, headDim } = last?.attention ?? {};
      assert.deepEqual([heads, kvHeads, headDim], [shape.heads, shape.kvHeads, shape.headDim]);
      const dense = spec.layers.filter(({ feedForward }) => feedForward.kind === 'dense');
      const { experts } = shape;
      assert.equal(dense.length, experts === undefined ? shape.layers : (experts.denseLayers ?? 0));
      if (last?.feedForward.kind === 'moe') {
        const { moe } = last.feedForward;
        assert.deepEqual([moe.experts, moe.used, moe.inner], [experts?.count, experts?.used, experts?.inner]);
        assert.equal(moe.shared?.inner, experts?.shared === undefined ? undefined : experts.inner * experts.shared);
      }
    });
  }

  test('an unknown shape is refused with the shapes that there are', async () => {
    await assert.rejects(writeSynthetic('huge', join(tmpdir(), 'never-written.gguf')), /huge.*qwen3-30b-a3b-6l/);
  });
});

/** Whole numbers below a bound, at random but the same every time (a linear congruential generator). */
function randomWholes(): (below: number) => number {
  let state = 1;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

async function rowsOf(file: ModelFile, tensor: TensorInfo): Promise<Float32Array[]> {
  const format = formatOf(tensor.format);
  const bytes = new Uint8Array(tensor.bytes);
  await file.sources[tensor.source]?.readInto(tensor.offset, bytes);
  const values = new Float32Array((bytes.length / format.blockBytes) * format.blockLength);
  format.decode(bytes, 0, values, 0, bytes.length / format.blockBytes);
  const columns = tensor.shape.at(-1) as number;
  return Array.from({ length: values.length / columns }, (_, i) => values.subarray(columns * i, columns * (i + 1)));
}
