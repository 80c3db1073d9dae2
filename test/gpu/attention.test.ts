/**
 * Laws 3 and 4 for attention on the GPU: both kinds of cache against the reference over head widths, sharing of key heads,
 * page borders and scattered pages; and no bit of a row depends on chunks, on neighbours or on where its pages lie.
 */

import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { Step } from '../../src/backend/backend.ts';
import { Builder } from '../../src/backend/gpu/builder.ts';
import { findAdapter } from '../../src/backend/gpu/device.ts';
import { cutOf } from '../../src/backend/gpu/kernels/attention-cut.ts';
import { stepDispatches } from '../../src/backend/gpu/kernels/attention-step.ts';
import { MATRIX_FEATURE } from '../../src/backend/gpu/kernels/matrix.ts';
import type { GpuRow } from '../../src/backend/gpu/row.ts';
import { gpuRows } from '../../src/backend/gpu/rows.ts';
import type { CacheType, KernelRequest, Mode } from '../../src/backend/kernel.ts';
import type { AttentionOperation, Operation } from '../../src/model/graph.ts';
import { select } from '../../src/plan/select.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import {
  attentionOver,
  type Beyond,
  beyondPlain,
  checkRuns,
  chunkedPrompt,
  edges,
  type Inputs,
  inputsOf,
  options,
  otherPages,
  type Runs,
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
import type { DeviceOptions } from '../support/device.ts';
import { emulatedAttention, suitePages } from '../support/emulated-attention.ts';
import { closeGpuTestDevice } from '../support/gpu.ts';
import { wgslErrors } from '../support/wgsl.ts';
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
  // A prompt's tiles are of 20 query heads here, and below of one.
  { heads: 40, kvHeads: 1, headDim: 576, valueDim: 512, joint: true },
  { heads: 4, kvHeads: 1, headDim: 48, valueDim: 32, joint: true },
  { heads: 74, kvHeads: 2, headDim: 8, valueDim: 4, joint: true },
];

/** What of those widths goes on subgroup matrices. */
const matrixShapes: readonly Shape[] = [
  { heads: 1, kvHeads: 1, headDim: 16, valueDim: 16 },
  { heads: 5, kvHeads: 1, headDim: 80, valueDim: 48 },
  { heads: 32, kvHeads: 1, headDim: 16, valueDim: 64 },
  { heads: 16, kvHeads: 2, headDim: 128, valueDim: 128 },
  { heads: 12, kvHeads: 4, headDim: 64, valueDim: 112 },
  { heads: 62, kvHeads: 2, headDim: 32, valueDim: 128 },
];

/** What runs over a graph of one attention by certain rows. */
interface Served {
  readonly title: string;
  readonly cache: CacheType;
  readonly rows: Readonly<Record<Mode, string>>;
  readonly shapes: readonly Shape[];
  over<T>(given: Given, use: (device: Runs) => Promise<T>): Promise<T>;
}

interface Given {
  readonly tiny: Tiny;
  readonly shape: Shape;
  readonly inputs: Inputs;
  readonly context?: number;
}

/** Through a plan, which takes those rows. */
function planned(cache: CacheType, rows: Served['rows'], shapes: readonly Shape[], more: DeviceOptions = {}): Served {
  return {
    title: [...new Set(Object.values(rows))].join(' and '),
    cache,
    rows,
    shapes,
    over({ tiny, context = 256 }, use) {
      const all = options(cache, { ...more, context });
      assert.deepEqual(tinyPlan(tiny, { ...all, device: 'gpu' }).operations.at(-1)?.rows, rows);
      return onGpu(tiny, all, use);
    },
  };
}

const rowNamed = (name: string) => gpuRows.find((row) => row.name === name) as GpuRow;
const matrixRows = { prompt: 'attention-prompt-matrix-f16', step: 'attention-step-matrix-f16' };

const facts = await findAdapter(nodePlatform);
const served: readonly Served[] = [
  planned('f16', { prompt: 'attention-f16', step: 'attention-f16' }, shapes),
  // A cache of f16 is read with more text; what both kinds share is tested over all shapes once.
  planned(
    'f32',
    { prompt: 'attention-f32', step: 'attention-f32' },
    shapes.filter((_, index) => index % 2 === 1),
  ),
  // On any device, with each matrix operation written out; heads are as wide as the least workgroup memory allows.
  {
    title: 'attention-prompt-matrix-f16 and attention-step-matrix-f16, written out',
    cache: 'f16',
    rows: matrixRows,
    shapes: [
      { heads: 5, kvHeads: 1, headDim: 32, valueDim: 16 },
      { heads: 20, kvHeads: 2, headDim: 16, valueDim: 32 },
    ],
    async over({ context = 256, ...given }, use) {
      const rows = { prompt: rowNamed(matrixRows.prompt), step: rowNamed(matrixRows.step) };
      return use({ run: await emulatedAttention({ ...given, rows, context, pages: suitePages }) });
    },
  },
  ...(facts.features.includes(MATRIX_FEATURE) ? [planned('f16', matrixRows, matrixShapes, { adapter: facts })] : []),
];
/** Of {@link beyondPlain}, around the borders of pages: what rows on matrices serve, and what they do not. */
const onMatrices = ['a window of 7', 'a window over a page border', 'chunks of 129', 'sinks and a window'];
const onAll = [...onMatrices, 'a temperature that rises with every position', 'sinks, chunks and a temperature'];

after(closeGpuTestDevice);

const toleranceOf = ({ rows }: Served) =>
  Math.max(...Object.values(rows).map((name) => rowNamed(name).tolerance.relativeRms));

async function checkAttention(
  kernels: Served,
  shape: Shape,
  inputs: Inputs,
  tolerance: number,
  beyond: Beyond = {},
): Promise<void> {
  const tiny = attentionOver(shape, inputs, beyond);
  const expected = await onReference(tiny, options(kernels.cache), wholePrompts);
  const width = shape.heads * shape.valueDim;
  const what = JSON.stringify({ ...shape, ...beyond });
  await kernels.over({ tiny, shape, inputs }, async (gpu) => {
    const { prompts, alone } = await checkRuns(gpu, { expected, width, tolerance, what });
    // In other pages, in chunks; the pages still hold what the runs above left there.
    sameBits(await chunkedPrompt(gpu, width), prompts.long, `${what}: chunks, in other pages`);
    for (const position of edges) {
      const step = stepOf('step', run('long', position, position + 1), otherPages);
      sameBits(await gpu.run(step), alone.get(position) as Float32Array, `${what}: step row ${position}, other pages`);
    }
  });
}

/** Query times 20 and key times 100 where the token is odd, no query where it is even; and the last token's key and value are lost. */
function extremes(shape: Shape, cache: CacheType): Inputs {
  const inputs = inputsOf(shape, 3);
  const { heads, kvHeads, headDim, valueDim } = shape;
  const width = heads * headDim;
  const key = inputs.key.map((x) => Math.fround(100 * x));
  const value = inputs.value.slice();
  // Kept as -∞ it would have scores of -∞, and weigh nothing.
  for (let head = 0; head < kvHeads; head++) {
    key[((ROWS - 1) * kvHeads + head) * headDim] = cache === 'f16' ? -1e6 : Number.NEGATIVE_INFINITY;
    value[((ROWS - 1) * kvHeads + head) * valueDim] = cache === 'f16' ? 1e6 : Number.POSITIVE_INFINITY;
  }
  const query = inputs.query.map((x, i) => (Math.floor(i / width) % 2 === 1 ? 20 * x : 0));
  query.fill(1, (ROWS - 1) * width);
  return { query, key, value };
}

for (const kernels of served) {
  const { title, cache, rows: names } = kernels;
  const tolerance = toleranceOf(kernels);
  describe(title, () => {
    for (const [index, shape] of kernels.shapes.entries()) {
      const { heads, kvHeads, headDim, valueDim, joint } = shape;
      const values = joint ? ', values in keys' : '';
      test(`${heads} heads on ${kvHeads} of ${headDim} and ${valueDim}${values}`, async () => {
        await checkAttention(kernels, shape, inputsOf(shape, index), tolerance);
      });
    }

    // What goes beyond the plain form is text that does not depend on the cache.
    const plain = names.prompt === 'attention-f32';
    const beyondThis = plain ? onAll : title.endsWith('written out') ? onMatrices : [];
    for (const name of beyondThis) {
      const beyond = beyondPlain[name] as Beyond;
      const shape = (plain ? shapes[1] : kernels.shapes[0]) as Shape;
      test(name, () => checkAttention(kernels, shape, inputsOf(shape, 1), tolerance, beyond));
    }

    if (names.prompt === 'attention-f16') {
      test('loses nothing but what its cache rounds', async () => {
        const shape = shapes[1] as Shape;
        const inputs = inputsOf(shape, 9);
        const held = { ...inputs, key: roundedToF16(inputs.key), value: roundedToF16(inputs.value) };
        await checkAttention(kernels, shape, held, 2e-6);
      });
    }

    test('scores that overflow an exponential, scores all alike, and keys that are lost', async () => {
      const shape: Shape = { heads: 2, kvHeads: 1, headDim: 16, valueDim: 16 };
      const inputs = extremes(shape, cache);
      const tiny = attentionOver(shape, inputs);
      const width = shape.heads * shape.valueDim;
      const rows = run('long', 0, ROWS - 1);
      const expected = await onReference(tiny, options(cache), (reference) => reference.run(stepOf('prompt', rows)));
      await kernels.over({ tiny, shape, inputs }, async (gpu) => {
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
          near(even(found, first), even(theirs, first), tolerance, `scores all alike, ${what}`);
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
  });
}

for (const row of gpuRows.filter(({ operation }) => operation === 'attention')) {
  const matrix = row.name.includes('matrix');
  const cache = row.name.endsWith('f16') ? 'f16' : 'f32';
  const none = new Float32Array(0);
  test(`${row.name} takes what its bounds say, and names what it does not take`, () => {
    const widest = matrix ? { headDim: 128, valueDim: 128 } : { headDim: 576, valueDim: 512 };
    const ask = (shape: Partial<Shape>, given: Partial<KernelRequest> = {}) => {
      const whole = { heads: 32, kvHeads: 1, ...widest, ...shape };
      const { operations } = attentionOver(whole, { query: none, key: none, value: none }).graph;
      const features = new Set(matrix ? [MATRIX_FEATURE] : []);
      return row.accepts(requestFor(operations.at(-1) as Operation, { cache, features, ...given }));
    };
    const least = matrix ? 16 : 4;
    for (const shape of [{}, { headDim: least }, { valueDim: least }, { heads: 1 }, { heads: 64, kvHeads: 2 }]) {
      assert.equal(ask(shape), true);
    }
    assert.equal(ask({}, { rows: 65535 }), true);
    for (const [shape, reason] of [
      [{ headDim: 258 }, /multiples of 4, keys up to 576 .* found 258 /],
      [{ headDim: 580 }, /multiples of 4, keys up to 576 .* found 580 /],
      [{ valueDim: 2 }, /found \d+ for keys and 2 for values$/],
      [{ valueDim: 516 }, /values up to 512, found \d+ for keys and 516 for values$/],
      [{ heads: 33, kvHeads: 2 }, /found 33 and 2/],
    ] as const) {
      assert.match(String(ask(shape)), reason);
    }
    assert.match(String(ask({}, { rows: 65536 })), /up to 65535 rows a run, found 65536/);
    assert.match(String(ask({}, { cache: cache === 'f16' ? 'f32' : 'f16' })), /keeps a cache of/);
    if (!matrix) {
      assert.equal(ask({ heads: 128 }), true);
      assert.equal(ask({ heads: 128, joint: true }), true);
      return;
    }
    assert.match(String(ask({ heads: 33 })), /up to 32 query heads a key head, found 33/);
    assert.match(String(ask({}, { features: new Set() })), /needs subgroup-matrix-f16/);
    for (const shape of [{ headDim: 144 }, { headDim: 120 }, { valueDim: 144 }, { valueDim: 4 }]) {
      assert.match(String(ask(shape)), /multiples of 16 up to 128, found \d+ for keys and \d+ for values/);
    }
  });
}

test('kernels on subgroup matrices are chosen where the device has them, and are WGSL', async () => {
  const none = new Float32Array(0);
  const windowed: Beyond = { reach: { kind: 'window', length: 128 }, sinks: 'sinks' };
  for (const [shape, beyond] of [
    ...matrixShapes.map((each) => [each, {}] as const),
    [matrixShapes[1] as Shape, windowed] as const,
  ]) {
    const tiny = attentionOver(shape, { query: none, key: none, value: none }, beyond);
    const { builder, graph } = builderFor(tiny, 8192);
    const operation = graph.operations.at(-1) as AttentionOperation;
    for (const mode of ['prompt', 'step'] as const) {
      const chosen = (features: readonly string[], cache: CacheType = 'f16') =>
        select(gpuRows, requestFor(operation, { mode, cache, features: new Set(features) }));
      assert.equal(chosen([]).name, 'attention-f16');
      assert.equal(chosen([MATRIX_FEATURE], 'f32').name, 'attention-f32');
      const row = chosen([MATRIX_FEATURE]);
      assert.equal(row.name, `attention-${mode}-matrix-f16`);
      row.emit(operation, builder, mode);
    }
    const codes = Object.values(builder.dispatches).flatMap((list) => list.map(({ code }) => code));
    for (const code of codes) assert.deepEqual(await wgslErrors(code), [], `${JSON.stringify(shape)}: ${code}`);
  }
});

function builderFor({ spec, graph, weights }: Tiny, context: number): { builder: Builder; graph: Tiny['graph'] } {
  const given = { promptRows: 64, wanted: 64, context, cacheType: 'f16', features: new Set<string>() } as const;
  return { builder: new Builder({ spec, graph, weights, ...given }), graph };
}

for (const kernels of served) {
  const { cache, title } = kernels;
  test(`chunks of several pages, as long contexts have them, by ${title}`, async () => {
    // At most 128 chunks: from 8,193 positions on they have two pages.
    const context = 2 * 128 * 64;
    const shape: Shape = { heads: 3, kvHeads: 1, headDim: 16, valueDim: 16 };
    const inputs = inputsOf(shape, 7);
    // Scores that grow with the position: the running maximum moves from page to page.
    const key = inputs.key.map((x, i) => x * (1 + Math.floor(i / 16 / 50)));
    const grown = { ...inputs, key };
    const tiny = attentionOver(shape, grown);
    const width = shape.heads * shape.valueDim;
    const cut = cutOf(tiny.graph.operations.at(-1) as AttentionOperation, context);
    assert.deepEqual([64, 65, 8192, 8193, context].map(cut.chunksOf), [1, 2, 128, 128, 128]);
    // The same four pages over and over; a step writes what the one before it has written already.
    const { pages } = sequences.long;
    const stepAt = (mode: Mode, positions: readonly number[]): Step => ({
      mode,
      tokens: Int32Array.from(positions, (position) => position % ROWS),
      positions: Int32Array.from(positions),
      sequences: new Int32Array(positions.length),
      pageTables: [Int32Array.from({ length: context / 64 }, (_, i) => pages[i % pages.length] as number)],
      wanted: new Int32Array(0),
    });
    const numbers = (first: number, end: number) => Array.from({ length: end - first }, (_, i) => first + i);
    const last = numbers(8190, 8200);
    const alone = [8191, 8192, 8193, 8199];
    const runs = async ({ run: runStep }: Runs) => {
      await runStep(stepAt('prompt', numbers(0, ROWS)));
      await runStep(stepAt('prompt', numbers(ROWS, 256)));
      const together = await runStep(stepAt('step', last));
      const single = new Map<number, Float32Array>();
      for (const position of [...alone, 63, 64, 127, 128])
        single.set(position, await runStep(stepAt('step', [position])));
      return { together, single };
    };
    const expected = await onReference(tiny, options(cache, { context }), runs);
    const tolerance = toleranceOf(kernels);
    await kernels.over({ tiny, shape, inputs: grown, context }, async (gpu) => {
      const found = await runs(gpu);
      near(found.together, expected.together, tolerance, `steps of ${cache}`);
      for (const [position, values] of found.single) {
        near(values, expected.single.get(position) as Float32Array, tolerance, `step row ${position}`);
      }
      for (const position of alone) {
        const row = found.together.subarray((position - 8190) * width, (position - 8189) * width);
        sameBits(found.single.get(position) as Float32Array, row, `step row ${position}`);
      }
    });
  });
}

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
