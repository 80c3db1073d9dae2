/** The reference as a device: what it takes, what it refuses, and how it says so. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Step } from '../../src/backend/backend.ts';
import type { KernelRequest } from '../../src/backend/kernel.ts';
import { referenceBackend } from '../../src/backend/reference/backend.ts';
import { referenceWeightBytes } from '../../src/backend/reference/store.ts';
import { DisposedError, InternalError, NonFiniteError, OutOfMemoryError, Refusal } from '../../src/errors.ts';
import { openGguf } from '../../src/format/gguf.ts';
import { type ByteSource, memorySource } from '../../src/format/source.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import type { Weight } from '../../src/model/weights.ts';
import type { Plan } from '../../src/plan/plan.ts';
import { select } from '../../src/plan/select.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { withReference } from '../support/reference.ts';

const path = fileURLToPath(new URL('../fixtures/families/glm4moe/model.gguf', import.meta.url));
const plan = { cache: { pages: 2 } } as Plan;

async function opened<T>(use: (request: Parameters<typeof referenceBackend.prepare>[0]) => Promise<T>): Promise<T> {
  const file = await openGguf(await nodeModelSource(path));
  try {
    const { spec, weights } = readModel(file);
    return await use({ plan, spec, graph: buildGraph(spec), weights, sources: file.sources });
  } finally {
    await file.close();
  }
}

function step(change: Partial<Step> = {}): Step {
  return {
    mode: 'prompt',
    tokens: Int32Array.of(5, 6),
    positions: Int32Array.of(0, 1),
    sequences: new Int32Array(2),
    pageTables: [Int32Array.of(1)],
    wanted: Int32Array.of(1),
    ...change,
  };
}

test('weights are read once, in pieces, counted, and held as f32', () =>
  opened(async (request) => {
    const seen: number[] = [];
    let total = 0;
    const executable = await referenceBackend.prepare({
      ...request,
      onProgress({ bytesDone, bytesTotal }) {
        seen.push(bytesDone);
        total = bytesTotal;
      },
    });
    const weights = [...request.weights.values()];
    assert.equal(
      total,
      weights.reduce((sum, { bytes }) => sum + bytes, 0),
    );
    assert.equal(seen.at(-1), total);
    assert.deepEqual(
      seen,
      seen.toSorted((a, b) => a - b),
    );
    const held = weights.reduce((sum, weight) => sum + referenceWeightBytes(weight), 0);
    // Two pages of 64 rows, two key heads, keys and values of 32, three layers.
    assert.equal(executable.bytes, held + 2 * 64 * 2 * (32 + 32) * 3 * 4);
    await executable.dispose();
  }));

test('a load that is aborted ends with the reason', () =>
  opened(async (request) => {
    const reason = new Error('enough');
    const controller = new AbortController();
    const loading = referenceBackend.prepare({
      ...request,
      signal: controller.signal,
      onProgress: () => controller.abort(reason),
    });
    await assert.rejects(loading, (error) => error === reason);
  }));

test('a weight that no array can hold is an error with its name and bytes', () =>
  opened(async (request) => {
    const embedding = request.weights.get('embedding') as Weight;
    const weights = new Map(request.weights).set('embedding', { ...embedding, shape: [2 ** 26, 2 ** 26] });
    await assert.rejects(referenceBackend.prepare({ ...request, weights }), (error) => {
      assert.ok(error instanceof OutOfMemoryError);
      assert.match(error.message, /embedding \[67108864, 67108864\]/);
      return true;
    });
  }));

test('only the wanted rows get logits, and every value and route can be read', () =>
  withReference(path, async ({ executable, graph, spec }) => {
    const both = (await executable.run(step({ wanted: Int32Array.of(0, 1) }))).slice();
    const second = await executable.run(step());
    assert.deepEqual(second, both.subarray(spec.vocabulary));
    assert.equal((await executable.run(step({ wanted: new Int32Array(0) }))).length, 0);
    for (const { output, kind } of graph.operations) {
      if (kind !== 'head') assert.equal(executable.value(output).length, 2 * graph.widths[output], output);
    }
    assert.equal(executable.routes(0).length, 0);
    assert.ok(executable.routes(1).every(({ experts, weights }) => experts.length === 2 && weights.length === 2));
    assert.throws(() => executable.value('layers.7.nothing'), InternalError);
  }));

test('a step outside the vocabulary, the cache or its own rows is caught before it reads a byte', () =>
  withReference(path, async ({ executable }) => {
    const bad: readonly Partial<Step>[] = [
      { tokens: Int32Array.of(5, 512) },
      { tokens: Int32Array.of(-1, 5) },
      { tokens: Int32Array.of(5) },
      { positions: Int32Array.of(63, 64) },
      { positions: Int32Array.of(-1, 0) },
      { sequences: Int32Array.of(0, 1) },
      { pageTables: [Int32Array.of(4)] },
      { pageTables: [Int32Array.of(-1)] },
      { wanted: Int32Array.of(2) },
    ];
    for (const change of bad) await assert.rejects(executable.run(step(change)), InternalError, JSON.stringify(change));
  }));

test('after dispose a run is refused', () =>
  withReference(path, async ({ executable }) => {
    await executable.dispose();
    await assert.rejects(executable.run(step()), DisposedError);
  }));

/** The model with every byte of one tensor set, read through a source that lies about that tensor alone. */
async function runWith(tensor: string, byte: number): Promise<unknown> {
  return opened(async (request) => {
    const weight = request.weights.get(tensor) as Weight;
    const [part] = weight.parts;
    const lying: ByteSource = {
      ...memorySource(new Uint8Array(0)),
      async readInto(offset, target) {
        await request.sources[0].readInto(offset, target);
        if (offset >= part.offset && offset < part.offset + part.bytes) target.fill(byte);
      },
    };
    const executable = await referenceBackend.prepare({ ...request, sources: [lying] });
    return executable.run(step()).catch((error: unknown) => error);
  });
}

test('where a value stops being finite, the error says in which layer and operation', async () => {
  const cases = [
    ['embedding', /^before layer 0 \(token_embd\): embed made NaN in embedded, prompt row 0/],
    ['layers.1.attention.value.bias', /^layer 1 \(blk\.1\): linear made NaN in layers\.1\.attention\.value,/],
    ['layers.2.moe.router', /^layer 2 \(blk\.2\): the router's logit for expert 0 is NaN/],
    [
      'layers.2.moe.selectionBias',
      /^layer 2 \(blk\.2\): the router's score with its selection bias for expert 0 is NaN/,
    ],
    ['layers.2.moe.shared.down', /^layer 2 \(blk\.2\): moe made NaN in layers\.2\.moe,/],
    ['finalNorm', /^after the last layer \(output\): norm made NaN in normed,/],
    ['head', /^after the last layer \(output\): head made NaN in logits, prompt row 1 at position 1/],
  ] as const;
  for (const [tensor, message] of cases) {
    const error = await runWith(tensor, 0xff);
    assert.ok(error instanceof NonFiniteError, tensor);
    assert.match(error.message, message);
  }
  assert.ok((await runWith('head', 0)) instanceof Float32Array);
});

test('the table serves every operation of a graph in both modes, and says what it does not take', () =>
  opened(async ({ graph, weights }) => {
    const shapes = Object.fromEntries(weights);
    const request = (change: Partial<KernelRequest>): KernelRequest => ({
      operation: graph.operations[0],
      mode: 'prompt',
      rows: 64,
      weights: shapes,
      widths: graph.widths,
      cache: 'f32',
      features: new Set(),
      ...change,
    });
    for (const operation of graph.operations) {
      for (const mode of ['prompt', 'step'] as const) {
        const row = select(referenceBackend.rows, request({ operation, mode }));
        assert.equal(row.operation, operation.kind);
      }
    }
    const attention = graph.operations.find(({ kind }) => kind === 'attention');
    assert.throws(
      () => select(referenceBackend.rows, request({ operation: attention, cache: 'f16' })),
      /reference-attention: .*f16/,
    );
    assert.throws(
      () => select(referenceBackend.rows, request({ weights: { embedding: { format: 'IQ1_S', shape: [512, 64] } } })),
      (error) => error instanceof Refusal && /reference-embed: cannot decode embedding.*IQ1_S/.test(error.message),
    );
  }));
