/**
 * Laws 3 and 4 for attention on the GPU: both kinds of cache against the reference over head widths, sharing of key heads,
 * page borders and scattered pages; and no bit of a row depends on chunks, on neighbours or on where its pages lie.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Builder } from '../../src/backend/gpu/builder.ts';
import { stepDispatches } from '../../src/backend/gpu/kernels/attention-step.ts';
import { gpuRows } from '../../src/backend/gpu/rows.ts';
import type { CacheType, KernelRequest } from '../../src/backend/kernel.ts';
import type { AttentionOperation, Operation } from '../../src/model/graph.ts';
import {
  attentionOver,
  checkRuns,
  chunkedPrompt,
  edges,
  type Inputs,
  inputsOf,
  options,
  otherPages,
  roundedToF16,
  run,
  type Shape,
  sequences,
  stepOf,
  wholePrompts,
} from '../conformance/support/attention-cases.ts';
import { near, ROWS, sameBits } from '../conformance/support/compare.ts';
import { requestFor } from '../conformance/support/requests.ts';
import { onReference, type Tiny, tinyPlan } from '../conformance/support/tiny-graph.ts';
import { onGpu } from './on-gpu.ts';

/** Query heads a key head: 1 to 32, in one tile and in several; widths that fill no slice, and the widest. */
const shapes: readonly Shape[] = [
  { heads: 1, kvHeads: 1, headDim: 4, valueDim: 4 },
  { heads: 5, kvHeads: 1, headDim: 20, valueDim: 12 },
  { heads: 32, kvHeads: 1, headDim: 16, valueDim: 64 },
  { heads: 16, kvHeads: 2, headDim: 128, valueDim: 128 },
  { heads: 3, kvHeads: 3, headDim: 132, valueDim: 20 },
  { heads: 12, kvHeads: 4, headDim: 64, valueDim: 132 },
  { heads: 62, kvHeads: 2, headDim: 4, valueDim: 8 },
  { heads: 5, kvHeads: 1, headDim: 256, valueDim: 256 },
];

async function checkAttention(shape: Shape, inputs: Inputs, cache: CacheType, tolerance: number): Promise<void> {
  const tiny = attentionOver(shape, inputs);
  const expected = await onReference(tiny, options(cache), wholePrompts);
  const width = shape.heads * shape.valueDim;
  const what = JSON.stringify(shape);
  const planned = tinyPlan(tiny, { ...options(cache), device: 'gpu' }).operations.at(-1)?.rows;
  assert.deepEqual(planned, { prompt: `attention-${cache}`, step: `attention-${cache}` });
  await onGpu(tiny, options(cache), async (gpu) => {
    const { prompts, alone } = await checkRuns(gpu, { expected, width, tolerance, what });
    // In other pages, in chunks; the pages still hold what the runs above left there.
    sameBits(await chunkedPrompt(gpu, width), prompts.long, `${what}: chunks, in other pages`);
    for (const position of edges) {
      const step = stepOf('step', run('long', position, position + 1), otherPages);
      sameBits(await gpu.run(step), alone.get(position) as Float32Array, `${what}: step row ${position}, other pages`);
    }
  });
}

/** Query times 20 and key times 100 where the token is odd, no query where it is even; and the last token's key is lost. */
function extremes(shape: Shape, cache: CacheType): Inputs {
  const inputs = inputsOf(shape, 3);
  const { heads, kvHeads, headDim } = shape;
  const width = heads * headDim;
  const key = inputs.key.map((x) => Math.fround(100 * x));
  // Kept as -∞ it would have scores of -∞, and weigh nothing.
  for (let head = 0; head < kvHeads; head++) {
    key[((ROWS - 1) * kvHeads + head) * headDim] = cache === 'f16' ? -1e6 : Number.NEGATIVE_INFINITY;
  }
  const query = inputs.query.map((x, i) => (Math.floor(i / width) % 2 === 1 ? 20 * x : 0));
  query.fill(1, (ROWS - 1) * width);
  return { query, key, value: inputs.value };
}

for (const row of gpuRows.filter(({ operation }) => operation === 'attention')) {
  const cache = (['f16', 'f32'] as const).find((type) => row.name === `attention-${type}`) as CacheType;
  describe(row.name, () => {
    // A cache of f16 is read with more text; what both kinds share is tested over all shapes once.
    for (const [index, shape] of shapes.entries()) {
      if (cache === 'f32' && index % 2 === 0) continue;
      const { heads, kvHeads, headDim, valueDim } = shape;
      test(`${heads} heads on ${kvHeads} of ${headDim} and ${valueDim}`, async () => {
        await checkAttention(shape, inputsOf(shape, index), cache, row.tolerance.relativeRms);
      });
    }

    if (cache === 'f16') {
      test('loses nothing but what its cache rounds', async () => {
        const shape = shapes[1] as Shape;
        const inputs = inputsOf(shape, 9);
        const held = { ...inputs, key: roundedToF16(inputs.key), value: roundedToF16(inputs.value) };
        await checkAttention(shape, held, cache, 2e-6);
      });
    }

    test('scores that overflow an exponential, scores all alike, and keys that are lost', async () => {
      const shape: Shape = { heads: 2, kvHeads: 1, headDim: 4, valueDim: 4 };
      const tiny = attentionOver(shape, extremes(shape, cache));
      const width = shape.heads * shape.valueDim;
      const rows = run('long', 0, ROWS - 1);
      const expected = await onReference(tiny, options(cache), (reference) => reference.run(stepOf('prompt', rows)));
      await onGpu(tiny, options(cache), async (gpu) => {
        const prompt = await gpu.run(stepOf('prompt', rows));
        const steps = await gpu.run(stepOf('step', run('long', 135, ROWS - 1)));
        const odd = (values: Float32Array, first: number) =>
          values.filter((_, i) => (first + Math.floor(i / width)) % 2 === 1);
        const even = (values: Float32Array, first: number) =>
          values.filter((_, i) => (first + Math.floor(i / width)) % 2 === 0);
        for (const [what, found, first] of [
          ['prompt', prompt, 0],
          ['steps', steps, 135],
        ] as const) {
          const theirs = expected.subarray(first * width);
          near(odd(found, first), odd(theirs, first), 2e-2, `scores in the thousands, ${what}`);
          near(even(found, first), even(theirs, first), row.tolerance.relativeRms, `scores all alike, ${what}`);
        }

        // Two pages of what no cache holds, but for their first keys: whoever sees it is not finite, whoever comes after never feels it.
        for (const mode of ['prompt', 'step'] as const) {
          for (const first of [0, 64]) {
            const step = stepOf(mode, run('middle', first, first + 64));
            const spoiled = await gpu.run({ ...step, tokens: step.tokens.map((_, i) => (i === 0 ? 1 : ROWS - 1)) });
            const last = spoiled.subarray(63 * width);
            assert.ok(!last.some(Number.isFinite), `${mode} rows that see a lost key are ${last.join()}`);
          }
          const pages = () => sequences.middle.pages;
          const again = await gpu.run(stepOf('prompt', run('long', 0, 70), pages));
          sameBits(again, prompt.subarray(0, 70 * width), `over pages that ${mode} rows spoiled`);
          const step = await gpu.run(stepOf('step', run('long', 70, 71), pages));
          assert.ok(step.every(Number.isFinite), `a step over pages that ${mode} rows spoiled is ${step.join()}`);
        }
      });
    });

    test('takes what its bounds say, and names what it does not take', () => {
      const ask = (shape: Partial<Shape>, given: Partial<KernelRequest> = {}) => {
        const whole = { heads: 32, kvHeads: 1, headDim: 256, valueDim: 256, ...shape };
        const { operations } = attentionOver(whole, { query: none, key: none, value: none }).graph;
        return row.accepts(requestFor(operations.at(-1) as Operation, { cache, ...given }));
      };
      const none = new Float32Array(0);
      for (const shape of [{}, { headDim: 4 }, { valueDim: 4 }, { heads: 1 }, { heads: 64, kvHeads: 2 }]) {
        assert.equal(ask(shape), true);
      }
      assert.equal(ask({}, { rows: 65535 }), true);
      for (const [shape, reason] of [
        [{ headDim: 258 }, /multiples of 4 up to 256, found 258 /],
        [{ headDim: 260 }, /multiples of 4 up to 256, found 260 /],
        [{ valueDim: 2 }, /found 256 for keys and 2 /],
        [{ valueDim: 260 }, /found 256 for keys and 260 /],
        [{ heads: 33 }, /up to 32 query heads a key head, found 33/],
        [{ heads: 33, kvHeads: 2 }, /found 33 and 2/],
      ] as const) {
        assert.match(String(ask(shape)), reason);
      }
      assert.match(String(ask({}, { rows: 65536 })), /up to 65535 rows a run, found 65536/);
      assert.match(String(ask({}, { cache: cache === 'f16' ? 'f32' : 'f16' })), /keeps a cache of/);
    });
  });
}

function builderFor({ spec, graph, weights }: Tiny, context: number): { builder: Builder; graph: Tiny['graph'] } {
  const given = { promptRows: 64, wanted: 64, context, cacheType: 'f16', features: new Set<string>() } as const;
  return { builder: new Builder({ spec, graph, weights, ...given }), graph };
}

test('chunks of several pages, as long contexts have them', async () => {
  // 256 pages in at most 128 chunks.
  const context = 2 * 128 * 64;
  const shape: Shape = { heads: 3, kvHeads: 1, headDim: 20, valueDim: 12 };
  const inputs = inputsOf(shape, 7);
  // Scores that grow with the position: the running maximum moves from page to page.
  const key = inputs.key.map((x, i) => x * (1 + Math.floor(i / 20 / 50)));
  const tiny = attentionOver(shape, { ...inputs, key });
  const expected = await onReference(tiny, options('f32'), wholePrompts);
  const width = shape.heads * shape.valueDim;
  await onGpu(tiny, options('f32', { context }), async (gpu) => {
    const { builder } = builderFor(tiny, context);
    const [chunks] = stepDispatches(tiny.graph.operations.at(-1) as AttentionOperation, builder);
    assert.equal(chunks?.workgroups({ rows: 1, wanted: 0, visible: 200 })[0], 2);
    await gpu.run(stepOf('prompt', run('long', 0, ROWS)));
    const all = await gpu.run(stepOf('step', run('long', 136, ROWS)));
    near(all, expected.long.subarray(136 * width), 2e-6, 'steps');
    for (const position of [136, 191, 192, 199]) {
      const alone = await gpu.run(stepOf('step', run('long', position, position + 1)));
      sameBits(alone, all.subarray((position - 136) * width, (position - 135) * width), `step row ${position}`);
    }
    for (const position of [0, 63, 64, 127, 128]) {
      const alone = await gpu.run(stepOf('step', run('long', position, position + 1)));
      const theirs = expected.long.subarray(position * width, (position + 1) * width);
      near(alone, theirs, 2e-6, `step row ${position}`);
    }
  });
});

test('a long context is cut into longer chunks, and its buffers stay bounded', () => {
  for (const context of [64, 4096, 8192, 131072, 2 ** 20]) {
    for (const heads of [1, 32, 128]) {
      const shape: Shape = { heads, kvHeads: 1, headDim: 128, valueDim: 128 };
      const none = new Float32Array(0);
      const { builder, graph } = builderFor(attentionOver(shape, { query: none, key: none, value: none }), context);
      const [chunks, combine] = stepDispatches(graph.operations.at(-1) as AttentionOperation, builder);
      const parts = builder.bytes.get('attention parts') as number;
      assert.ok(parts <= 2 ** 27, `${heads} heads at ${context}: ${parts} bytes`);
      const count = parts / (64 * heads * 128 * 4);
      assert.ok(count >= Math.min(8, context / 64), `${heads} heads at ${context}: ${count} chunks`);
      // Every position of the context is in a chunk, and every chunk has a thread of the kernel that combines.
      assert.deepEqual(chunks?.workgroups({ rows: 64, wanted: 0, visible: context })[0], count);
      assert.deepEqual(combine?.workgroups({ rows: 64, wanted: 0, visible: context }), [heads, 64, 1]);
      assert.ok(count <= 128);
    }
  }
});
