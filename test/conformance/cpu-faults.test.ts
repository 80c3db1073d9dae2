/**
 * What goes wrong on the CPU backend is named and leaves nothing behind: values that are not finite name their layer, a
 * step that does not fit is refused before it is written, a load that fails ends its workers.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Step } from '../../src/backend/backend.ts';
import { DisposedError, InternalError, NonFiniteError, Refusal } from '../../src/errors.ts';
import { memorySource } from '../../src/format/source.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import type { ModelSpec } from '../../src/model/spec.ts';
import { backendOf, type DeviceModel, planFor, runTokens, stepOf, withDevice } from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { gaussians, random } from './support/blocks.ts';
import { PLAIN, sameBits } from './support/compare.ts';
import { bindWeights, f32Weight, type TinyWeight } from './support/tiny-graph.ts';

const HIDDEN = 32;
const VOCABULARY = 11;

const attention = {
  norm: { epsilon: 1e-6 },
  heads: 2,
  kvHeads: 1,
  headDim: 16,
  valueDim: 16,
  scale: 0.25,
  rope: { pairing: 'half', dimensions: 16, base: 10000, scaling: { kind: 'none' } },
  bias: { query: false, key: false, value: false, output: false },
} as const;
/** One layer with a router between two dense ones. */
const spec: ModelSpec = {
  architecture: 'tiny',
  vocabulary: VOCABULARY,
  hidden: HIDDEN,
  trainedContext: 64,
  finalNorm: { epsilon: 1e-6 },
  head: { tied: false },
  layers: [0, 1, 2].map((layer) => ({
    attention,
    feedForward:
      layer === 1
        ? {
            kind: 'moe',
            norm: { epsilon: 1e-6 },
            moe: {
              experts: 3,
              used: 2,
              inner: 8,
              activation: 'silu',
              router: { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 },
            },
          }
        : { kind: 'dense', norm: { epsilon: 1e-6 }, inner: 24, activation: 'silu' },
  })),
};

function shapes(): Record<string, readonly number[]> {
  const all: Record<string, readonly number[]> = {
    embedding: [VOCABULARY, HIDDEN],
    finalNorm: [HIDDEN],
    head: [VOCABULARY, HIDDEN],
  };
  spec.layers.forEach(({ feedForward }, layer) => {
    const at = `layers.${layer}`;
    Object.assign(all, {
      [`${at}.attention.norm`]: [HIDDEN],
      [`${at}.attention.query`]: [32, HIDDEN],
      [`${at}.attention.key`]: [16, HIDDEN],
      [`${at}.attention.value`]: [16, HIDDEN],
      [`${at}.attention.output`]: [HIDDEN, 32],
      [`${at}.feedForward.norm`]: [HIDDEN],
    });
    if (feedForward.kind === 'dense') {
      const { inner } = feedForward;
      Object.assign(all, {
        [`${at}.feedForward.gate`]: [inner, HIDDEN],
        [`${at}.feedForward.up`]: [inner, HIDDEN],
        [`${at}.feedForward.down`]: [HIDDEN, inner],
      });
    } else {
      Object.assign(all, {
        [`${at}.moe.router`]: [3, HIDDEN],
        [`${at}.moe.gate`]: [3, 8, HIDDEN],
        [`${at}.moe.up`]: [3, 8, HIDDEN],
        [`${at}.moe.down`]: [3, HIDDEN, 8],
      });
    }
  });
  return all;
}

/** The model with some values of some weights changed. */
async function withModel<T>(
  change: Readonly<Record<string, (values: Float32Array) => void>>,
  use: (model: DeviceModel) => Promise<T>,
  threads = 2,
): Promise<T> {
  const next = random(7);
  const weights: Record<string, TinyWeight> = {};
  for (const [name, shape] of Object.entries(shapes())) {
    const values = gaussians(
      shape.reduce((a, b) => a * b, 1),
      next,
    ).map((x) => 0.3 * x) as Float32Array<ArrayBuffer>;
    change[name]?.(values);
    weights[name] = f32Weight(values, ...shape);
  }
  const bound = bindWeights(weights);
  const graph = buildGraph(spec);
  const plan = planFor({ spec, graph, weights: bound.weights }, { threads, batch: 64, cache: 'f32' });
  const executable = await backendOf(plan).prepare({
    plan,
    spec,
    graph,
    ...bound,
    sources: [memorySource(bound.bytes)],
  });
  try {
    return await use({ spec, graph, weights: bound.weights, plan, executable });
  } finally {
    await executable.dispose();
  }
}

const bad = (name: string) => fileURLToPath(new URL(`../fixtures/bad/${name}`, import.meta.url));

async function faultOf(model: DeviceModel, tokens: readonly number[]): Promise<NonFiniteError> {
  for (const mode of ['prompt', 'step'] as const)
    await assert.rejects(runTokens(model, tokens, 0, mode), NonFiniteError);
  return runTokens(model, tokens, 0, 'prompt').then(
    () => assert.fail('it ran'),
    (error: NonFiniteError) => error,
  );
}

describe('a value that is not finite', () => {
  test('names the layer of the weights that are damaged', () =>
    withDevice(bad('weights-nan.gguf'), { context: 64, threads: 2 }, async (model) => {
      const error = await faultOf(model, [1, 2, 3]);
      assert.equal(error.data.layer, 1);
      assert.match(error.message, /layer 1 \(blk\.1\).*from position 0/);
    }));

  const damaged: readonly (readonly [weight: string, layer: number, message: RegExp])[] = [
    ['layers.0.attention.norm', 0, /layer 0/],
    ['layers.0.attention.query', 0, /layer 0/],
    ['layers.1.attention.key', 1, /layer 1/],
    ['layers.1.attention.output', 1, /layer 1/],
    ['layers.1.moe.router', 1, /layer 1 \(blk\.1\).*router/],
    ['layers.1.moe.gate', 1, /layer 1/],
    ['layers.1.moe.down', 1, /layer 1/],
    ['layers.2.feedForward.norm', 2, /layer 2/],
    ['layers.2.feedForward.down', 2, /layer 2/],
    ['finalNorm', 3, /after the last layer/],
    ['head', 3, /after the last layer/],
  ];
  for (const [weight, layer, message] of damaged) {
    for (const value of [Number.NaN, Number.POSITIVE_INFINITY]) {
      test(`${value} in ${weight} names ${layer === 3 ? 'the output' : `layer ${layer}`}`, () =>
        withModel(
          { [weight]: (values) => void values.fill(value) },
          async (model) => {
            const error = await faultOf(model, [1, 2, 3]);
            assert.equal(error.data.layer, layer, error.message);
            // Infinity times zeros of either sign may be NaN before the router or behind it.
            assert.match(error.message, Number.isNaN(value) ? message : /layer/);
            assert.equal(error.code, 'non_finite');
          },
          1,
        ));
    }
  }

  test('that one token brings is of the embedding, and the next run is as if it had not been', () =>
    withModel({ embedding: (values) => void values.fill(Number.NaN, 7 * HIDDEN, 8 * HIDDEN) }, async (model) => {
      const clean = await runTokens(model, [1, 2, 3, 4], 0, 'prompt');
      const error = await faultOf(model, [1, 2, 3, 7, 7, 7]);
      assert.equal(error.data.layer, -1);
      assert.match(error.message, /embedding/);
      sameBits(await runTokens(model, [1, 2, 3, 4], 0, 'prompt'), clean, 'after a fault');
      sameBits(await runTokens(model, [4], 3, 'step'), await runTokens(model, [4], 3, 'step'), 'steps after a fault');
      assert.ok((await runTokens(model, [4], 3, 'step')).every(Number.isFinite));
    }));
});

describe('a step that does not fit', () => {
  const good = (): Step =>
    stepOf(
      'step',
      [
        { token: 1, position: 0 },
        { token: 2, position: 1 },
      ],
      1,
    );
  const many = Array.from({ length: 65 }, (_, position) => ({ token: 1, position: position % 64 }));
  const wrong: Readonly<Record<string, readonly [Step, RegExp]>> = {
    'a token outside the vocabulary': [
      { ...good(), tokens: Int32Array.of(1, VOCABULARY) },
      /token 11 is outside the vocabulary of 11/,
    ],
    'a negative token': [{ ...good(), tokens: Int32Array.of(1, -1) }, /token -1/],
    'no rows': [{ ...good(), tokens: new Int32Array(0) }, /0 rows/],
    'too many rows': [stepOf('step', many, 1), /65 rows; the plan allows 1 to 64/],
    'a position short': [{ ...good(), positions: Int32Array.of(0) }, /2 tokens with 1 positions/],
    'a position beyond the pages': [{ ...good(), positions: Int32Array.of(0, 64) }, /position 64/],
    'a negative position': [{ ...good(), positions: Int32Array.of(-1, 0) }, /position -1/],
    'a sequence without pages': [{ ...good(), sequences: Int32Array.of(0, 1) }, /no page/],
    'a page outside the cache': [
      { ...good(), pageTables: [Int32Array.of(1)] },
      /page 1 is outside the cache of 1 pages/,
    ],
    'more pages than a context has': [
      { ...good(), pageTables: [Int32Array.of(0, 0)] },
      /2 pages; a context of 64 has 1/,
    ],
    'more sequences than rows of a step': [{ ...good(), pageTables: many.map(() => Int32Array.of(0)) }, /65 sequences/],
    'logits of a row that is not there': [{ ...good(), wanted: Int32Array.of(2) }, /row 2 were asked for, of 2 rows/],
  };
  for (const [name, [step, message]] of Object.entries(wrong)) {
    test(`${name} is an error, and the next step runs`, () =>
      withModel(
        {},
        async ({ executable }) => {
          const before = (await executable.run(good())).slice();
          await assert.rejects(
            executable.run(step),
            (error: unknown) => error instanceof InternalError && message.test(error.message),
          );
          sameBits(await executable.run(good()), before, name);
        },
        1,
      ));
  }
});

describe('an end', () => {
  test('dispose may come twice, and a run after it is an error', () =>
    withModel(
      {},
      async (model) => {
        await runTokens(model, [1], 0, 'step');
        await model.executable.dispose();
        await model.executable.dispose();
        await assert.rejects(runTokens(model, [1], 0, 'step'), DisposedError);
      },
      3,
    ));

  for (const [how, message] of [
    ['read', 'source: the disk is gone'],
    ['abort', 'source: given up'],
  ] as const) {
    test(`a load that fails by ${how} says why and leaves no worker`, async () => {
      const program = fileURLToPath(new URL('../support/failing-load.ts', import.meta.url));
      const { stdout } = await promisify(execFile)(
        process.execPath,
        [program, familyFile('glm4moe', 'model.gguf'), how],
        { timeout: 20_000 },
      );
      assert.equal(stdout, `${message}\ndone\n`);
    });
  }

  test('a plan for a runtime without SIMD is refused before anything is read', () =>
    withModel(
      {},
      async ({ spec: own, graph, weights }) => {
        const features = new Set([...PLAIN].filter((feature) => feature !== 'simd'));
        assert.throws(
          () => planFor({ spec: own, graph, weights }, { features }),
          (error: unknown) => error instanceof Refusal && /needs WebAssembly simd/.test(error.message),
        );
      },
      1,
    ));
});
