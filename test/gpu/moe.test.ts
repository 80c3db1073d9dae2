/**
 * Laws 3 and 4 for the mixture of experts on the GPU: routers, mixes of formats and kinds of shared expert against the
 * reference, and the choice by itself over many more rows than a layer can be run with here.
 */

import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Builder } from '../../src/backend/gpu/builder.ts';
import { moeRows } from '../../src/backend/gpu/kernels/moe.ts';
import type { MoeLayer } from '../../src/backend/gpu/kernels/moe-layer.ts';
import { emitRoute } from '../../src/backend/gpu/kernels/moe-route.ts';
import { route } from '../../src/backend/reference/moe.ts';
import { NonFiniteError } from '../../src/errors.ts';
import type { MoeOperation } from '../../src/model/graph.ts';
import type { MoeSpec, RouterSpec } from '../../src/model/spec.ts';
import { gaussians, random } from '../conformance/support/blocks.ts';
import { near, ROWS, sameBits } from '../conformance/support/compare.ts';
import { moeCases, moeGraph, spec } from '../conformance/support/moe-cases.ts';
import { casesOf, requestFor } from '../conformance/support/requests.ts';
import { rowsStep, tinyGraph, tinyPlan } from '../conformance/support/tiny-graph.ts';
import { closeGpuTestDevice, runOnGpu } from '../support/gpu.ts';
import { checkGpuRows, onGpu } from './on-gpu.ts';

after(closeGpuTestDevice);

/** By name; those of bytes have cases of their own (`step-int8.test.ts`). */
function rowOf(name: string) {
  const row = moeRows.find((known) => known.name === name);
  assert.ok(row !== undefined, name);
  return row;
}
const row = rowOf('moe-step');

/** Kernels take long to compile here: each case brings something that no other has. */
const layers = [
  'softmax, normalised',
  'softmax, not normalised, gated shared expert',
  'sigmoid, bias, scale, plain shared expert in another format',
  'NVFP4 routed with a BF16 shared expert, one of 64',
  'NVFP4 in blocks of 32 with a scale for each whole matrix, and a shared expert without',
  'groups by their two best',
  'one expert',
  'experts that no row picks',
  'widths that fit nothing',
  'a router with an input of its own, scales of experts',
  'a router with an input of its own, encoded otherwise than the experts’',
  'biases of experts, clamped SwiGLU',
  'biases of experts at widths that fit nothing',
  'weights on the inputs of experts with biases, three of 6',
] as const;

const softmax: RouterSpec = { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 };

describe('moe on the GPU', () => {
  for (const name of layers) {
    test(name, async () => {
      const tiny = moeGraph(moeCases[name] as (typeof moeCases)[string]);
      const planned = tinyPlan(tiny, { device: 'gpu' }).operations.at(-1)?.rows;
      assert.deepEqual(planned, { prompt: 'moe-prompt', step: 'moe-step' });
      await checkGpuRows(tiny, { tolerance: () => row.tolerance.relativeRms, what: name });
    });
  }

  test('a row has the same bits however many rows are beside it', async () => {
    const hidden = 64;
    const tiny = moeGraph(moeCases['groups by their two best'] as (typeof moeCases)[string]);
    await onGpu(tiny, {}, async ({ run }) => {
      for (const [mode, all, counts] of [
        ['step', 64, [1, 2, 3, 4, 5, 8, 9, 63, 64]],
        ['prompt', ROWS, [1, 31, 32, 33, 64, 65, 199]],
      ] as const) {
        const whole = await run(rowsStep(mode, 0, all));
        for (const count of counts) {
          const first = all - count;
          const some = await run(rowsStep(mode, first, count));
          sameBits(some, whole.subarray(first * hidden), `${count} ${mode} rows`);
        }
      }
    });
  });

  test('a row that cannot be routed is found, in both modes', async () => {
    const tiny = moeGraph(moeCases['groups by their two best'] as (typeof moeCases)[string]);
    const table = tiny.weights.get('table x')?.parts[0];
    assert.ok(table !== undefined);
    const bytes = tiny.bytes.slice();
    // Row 5: a NaN; logits are not numbers.
    new DataView(bytes.buffer).setFloat32(table.offset + 5 * 64 * 4, Number.NaN, true);
    await onGpu({ ...tiny, bytes }, {}, async ({ executable }) => {
      for (const mode of ['step', 'prompt'] as const) {
        await executable.run(rowsStep(mode, 6, 4)).catch((error: unknown) => assert.fail(`${mode}: ${error}`));
        const found = await executable.value?.('y');
        assert.ok(found?.every(Number.isFinite), `${mode}: other rows`);
        // The backend may name the fault itself, or leave it in the values.
        const answer = await executable.run(rowsStep(mode, 4, 4)).then(
          async () => (await executable.value?.('y')) as Float32Array,
          (error: unknown) => error,
        );
        if (answer instanceof Float32Array) {
          const bad = [0, 1, 2, 3].filter((t) => answer.subarray(t * 64, (t + 1) * 64).every(Number.isNaN));
          assert.deepEqual(bad, [1], mode);
        } else assert.ok(answer instanceof NonFiniteError, mode);
      }
    });
  });
});

describe('the choice', () => {
  const sigmoid: RouterSpec = { gating: 'sigmoid', selectionBias: true, normalise: true, scale: 2.5 };
  const routers: Readonly<Record<string, MoeSpec>> = {
    'softmax, 8 of 128': spec(128, 8, 32),
    'softmax, not normalised, scaled, with a shared gate': spec(60, 4, 32, {
      router: { ...softmax, normalise: false, scale: 1.5 },
      shared: { inner: 32, gated: true },
    }),
    'softmax with a bias': spec(64, 6, 32, { router: { ...softmax, selectionBias: true } }),
    'softmax, groups by their best': spec(64, 4, 32, {
      router: { ...softmax, groups: { count: 8, used: 3, rankedBy: 'best' } },
    }),
    'sigmoid, groups by their two best': spec(256, 8, 32, {
      router: { ...sigmoid, groups: { count: 8, used: 4, rankedBy: 'twoBest' } },
    }),
    'sigmoid without a bias, groups of one, plain shared expert': spec(12, 3, 32, {
      router: { ...sigmoid, selectionBias: false, groups: { count: 12, used: 5, rankedBy: 'twoBest' } },
      shared: { inner: 32, gated: false },
    }),
    'the most experts': spec(1024, 32, 32),
    'all of them': spec(5, 5, 32),
  };

  for (const [name, moe] of Object.entries(routers)) {
    test(name, async () => {
      const rows = 64;
      const { experts, used } = moe;
      const gated = moe.shared?.gated === true;
      const width = experts + (gated ? 1 : 0);
      const logits = gaussians(rows * width, random(experts)).map((x) => 2 * x);
      // Ties, ends of the range, and what no row may be routed by.
      logits.fill(0.5, 0, experts);
      for (let e = 0; e < experts; e++) logits[width + e] = e % 3;
      logits[2 * width + 1] = 1e6;
      logits[3 * width] = Number.NaN;
      logits[4 * width + experts - 1] = Number.POSITIVE_INFINITY;
      logits[5 * width] = Number.NEGATIVE_INFINITY;
      const bias = moe.router.selectionBias ? gaussians(experts, random(7)).map((x) => 0.2 * x) : undefined;
      const { ids, weights, factor } = await choose(moe, logits as Float32Array<ArrayBuffer>, bias, rows);
      const expectedWeights: number[] = [];
      const foundWeights: number[] = [];
      for (let t = 0; t < rows; t++) {
        const own = logits.subarray(t * width, t * width + experts);
        const foundIds = ids(t);
        assert.ok(foundIds.every((id) => id < experts) && new Set(foundIds).size === used, `row ${t}`);
        if (!own.every(Number.isFinite)) {
          assert.ok(weights(t).every(Number.isNaN), `row ${t} may not be routed`);
          continue;
        }
        const expected = route(own, bias as Float32Array, moe.router, used);
        assert.deepEqual(foundIds, [...expected.experts], `row ${t}`);
        foundWeights.push(...weights(t));
        expectedWeights.push(...expected.weights);
        if (moe.shared === undefined) continue;
        const gate = gated ? 1 / (1 + Math.exp(-(logits[t * width + experts] as number))) : 1;
        assert.ok(
          Math.abs(factor(t) - gate) < 1e-6,
          `row ${t}: the shared expert's factor is ${factor(t)}, not ${gate}`,
        );
      }
      near(Float32Array.from(foundWeights), Float32Array.from(expectedWeights), 1e-6, name);
    });
  }
});

/** Runs the dispatch of the choice over logits [rows, experts (+ 1)]. */
async function choose(
  moe: MoeSpec,
  logits: Float32Array<ArrayBuffer>,
  bias: Float32Array | undefined,
  rows: number,
): Promise<{
  ids(t: number): number[];
  weights(t: number): number[];
  factor(t: number): number;
}> {
  const { used } = moe;
  const operation: MoeOperation = { kind: 'moe', layer: 0, input: 'x', prefix: 'm', moe, output: 'y' };
  const {
    spec: model,
    graph,
    weights,
  } = tinyGraph({
    rows: 1,
    inputs: { x: new Float32Array(1) },
    operations: [operation],
    widths: { y: 1 },
    output: 'y',
  });
  const builder = new Builder({
    graph,
    spec: model,
    weights,
    promptRows: rows,
    wanted: 1,
    context: 64,
    cacheType: 'f32',
    features: new Set(),
  });
  const routeWidth = 2 * used + 1;
  const layer: Omit<MoeLayer, 'bank'> = {
    operation,
    builder,
    hidden: 1,
    logits: 'logits',
    logitsWidth: logits.length / rows,
    route: 'route',
    routeWidth,
    inner: 'inner',
    innerWidth: 32,
    slot: 32,
    sharedSlot: 0,
  };
  emitRoute(layer, 'step');
  const [dispatch] = builder.dispatches.step;
  assert.ok(dispatch !== undefined);
  const step = new Uint32Array(builder.step.words);
  step[builder.step.rows] = rows;
  const [written] = await runOnGpu(
    dispatch.code,
    dispatch.bindings.map((binding) => {
      if (binding.kind === 'step') return { read: step };
      if (binding.kind === 'weight') return { read: bias as Float32Array<ArrayBuffer> };
      return 'name' in binding && binding.name === 'logits' ? { read: logits } : { write: rows * routeWidth * 4 };
    }),
    dispatch.workgroups({ rows, wanted: 0, visible: 1 }),
  );
  const words = new Uint32Array(written as ArrayBuffer);
  const floats = new Float32Array(written as ArrayBuffer);
  return {
    ids: (t) => [...words.subarray(t * routeWidth, t * routeWidth + used)],
    weights: (t) => [...floats.subarray(t * routeWidth + used, t * routeWidth + 2 * used)],
    factor: (t) => floats[t * routeWidth + 2 * used] as number,
  };
}

describe('the row of the table', () => {
  for (const name of ['moe-step', 'moe-prompt']) {
    test(`${name} takes what it states and names what it does not`, () => {
      const { accepted, refused } = casesOf(rowOf(name));
      for (const request of accepted) assert.equal(rowOf(name).accepts(request), true);
      for (const { request, reason } of refused) assert.match(String(rowOf(name).accepts(request)), reason);
    });
  }

  test('the row of bytes takes K formats on devices that multiply them, and the router as it is', () => {
    const own = rowOf('moe-step-int8');
    const accepted = casesOf(row).accepted.filter(({ weights }) => {
      const matrices = Object.entries(weights).filter(([name]) => !/router$|Bias$/.test(name));
      return matrices.every(([, { format }]) => ['Q4_K', 'Q6_K', 'NVFP4', 'MXFP4'].includes(format));
    });
    assert.ok(accepted.length > 0);
    for (const request of accepted) {
      assert.equal(own.accepts(request), true);
      assert.match(String(own.accepts({ ...request, features: new Set() })), /needs packed_4x8/);
    }
  });

  test('bounds the inner values of a row', () => {
    const answer = (inner: number) =>
      row.accepts(requestFor({ kind: 'moe', layer: 0, input: 'x', prefix: 'm', moe: spec(8, 2, inner), output: 'y' }));
    assert.equal(answer(24576), true);
    assert.match(String(answer(24577)), /up to 49152 inner values a row, found 49216/);
  });

  test('bounds the experts it chooses among and the ones it sums', () => {
    const answer = (experts: number, used: number, groups?: number) =>
      row.accepts(
        requestFor({
          kind: 'moe',
          layer: 0,
          input: 'x',
          prefix: 'm',
          moe: spec(
            experts,
            used,
            32,
            groups === undefined
              ? {}
              : { router: { ...softmax, groups: { count: groups, used: 1, rankedBy: 'best' } } },
          ),
          output: 'y',
        }),
      );
    assert.equal(answer(1024, 32), true);
    assert.match(String(answer(1025, 8)), /up to 1024 experts, found 1025/);
    assert.equal(answer(1024, 4, 256), true);
    assert.match(String(answer(1024, 2, 512)), /up to 256 groups of experts, found 512/);
    assert.match(String(answer(128, 33)), /up to 32 experts a row, found 33/);
  });
});
