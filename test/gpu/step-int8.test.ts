/**
 * Laws 3 and 4 for step rows whose activations are bytes: every format that takes them, over as many columns as lanes take at
 * once, more and fewer; and the fused operations, against the reference's unfused graph.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { gpuFormats } from '../../src/backend/gpu/formats/index.ts';
import { INT8_FEATURE } from '../../src/backend/gpu/int8.ts';
import { int8Encoding } from '../../src/backend/gpu/kernels/lane-product.ts';
import type { Operation } from '../../src/model/graph.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { gaussians, nastyRows, random, randomWeight } from '../conformance/support/blocks.ts';
import { ROWS } from '../conformance/support/compare.ts';
import { moeCases, moeGraph } from '../conformance/support/moe-cases.ts';
import { f32Weight, type Tiny, type TinyWeight, tinyGraph, tinyPlan } from '../conformance/support/tiny-graph.ts';
import type { DeviceOptions } from '../support/device.ts';
import { checkGpuRows } from './on-gpu.ts';

/** A GPU that has what these rows need, and nothing else that others do. */
const adapter: DeviceOptions['adapter'] = {
  name: 'test',
  features: [INT8_FEATURE],
  maxBufferBytes: 2 ** 30,
  maxBindingBytes: 2 ** 30,
  maxBindings: 16,
  workgroupBytes: 16384,
  software: true,
};
const tolerance = int8Encoding.tolerance.relativeRms;

/** The rows that serve steps of the operations behind the inputs. */
function stepRows(tiny: Tiny): (string | undefined)[] {
  const { operations } = tinyPlan(tiny, { device: 'gpu', adapter });
  return operations.filter(({ kind }) => kind !== 'embed').map(({ rows }) => rows.step);
}

function matrix(format: FormatId, rows: number, columns: number, seed = rows): TinyWeight {
  return { format, shape: [rows, columns], bytes: randomWeight(format, rows * columns, seed) };
}

function ones(count: number, seed: number): TinyWeight {
  const values = gaussians(count, random(seed)).map((x) => 1 + 0.1 * x) as Float32Array<ArrayBuffer>;
  return f32Weight(values, count);
}

function product(format: FormatId, rows: number, columns: number): Tiny {
  return tinyGraph({
    rows: ROWS,
    inputs: { x: nastyRows(ROWS, columns, columns) },
    operations: [{ kind: 'linear', layer: 0, input: 'x', weight: 'w', output: 'y' }],
    widths: { y: rows },
    output: 'y',
    weights: { w: matrix(format, rows, columns) },
  });
}

describe('products of bytes on the GPU', () => {
  const formats = gpuFormats.filter(({ activations }) => activations === 'int8').map(({ id }) => id);
  const shapes: readonly (readonly [FormatId, number, number])[] = [
    ...formats.map((id) => [id, 67, id === 'MXFP4' ? 96 : id === 'NVFP4' ? 192 : 512] as const),
    // One block beyond what lanes take in a round, and so many rows that a workgroup takes several turns.
    ['Q4_K', 35, 4352],
    ['Q6_K', 9001, 256],
  ];
  for (const [format, rows, columns] of shapes) {
    test(`${format} [${rows}, ${columns}]`, async () => {
      const tiny = product(format, rows, columns);
      assert.deepEqual(stepRows(tiny), [`linear-step-int8-${format.toLowerCase()}`]);
      await checkGpuRows(tiny, { tolerance: () => tolerance, options: { adapter }, what: `${format} ${columns}` });
    });
  }

  test('without the dot product of bytes, and for formats of small models, products are of f32', () => {
    const tiny = product('Q4_K', 8, 256);
    assert.equal(tinyPlan(tiny, { device: 'gpu' }).operations.at(-1)?.rows.step, 'linear-step-q4_k');
    assert.deepEqual(stepRows(product('Q8_0', 8, 256)), ['linear-step-q8_0']);
  });
});

describe('fused operations of bytes on the GPU', () => {
  const hidden = 512;
  const x = () => ({ x: nastyRows(ROWS, hidden, 3) });
  const norm: Operation = {
    kind: 'norm',
    layer: 0,
    input: 'x',
    weight: 'n',
    epsilon: 1e-6,
    group: hidden,
    output: 'normed',
  };

  test('a product with the sum behind it', async () => {
    const tiny = tinyGraph({
      rows: ROWS,
      inputs: x(),
      operations: [
        { kind: 'linear', layer: 0, input: 'x', weight: 'w', bias: 'b', output: 'p' },
        { kind: 'add', layer: 0, left: 'x', right: 'p', output: 'y' },
      ],
      widths: { p: hidden, y: hidden },
      output: 'y',
      weights: { w: matrix('Q4_K', hidden, hidden), b: ones(hidden, 5) },
    });
    assert.deepEqual(stepRows(tiny), ['project-step-int8']);
    await checkGpuRows(tiny, { tolerance: () => tolerance, options: { adapter }, what: 'product and sum' });
  });

  test('the norm, gate and up of a dense layer', async () => {
    const inner = 320;
    const tiny = tinyGraph({
      rows: ROWS,
      inputs: x(),
      operations: [
        norm,
        { kind: 'linear', layer: 0, input: 'normed', weight: 'g', output: 'gate' },
        { kind: 'linear', layer: 0, input: 'normed', weight: 'u', output: 'up' },
        { kind: 'glu', layer: 0, gate: 'gate', up: 'up', activation: 'silu', output: 'y' },
      ],
      widths: { normed: hidden, gate: inner, up: inner, y: inner },
      output: 'y',
      weights: { n: ones(hidden, 1), g: matrix('Q4_K', inner, hidden), u: matrix('Q5_K', inner, hidden, 9) },
    });
    assert.deepEqual(stepRows(tiny), ['gated-step-int8']);
    // A gate's error is felt more than once where silu bends.
    await checkGpuRows(tiny, { tolerance: () => 1.5 * tolerance, options: { adapter }, what: 'norm, gate and up' });
  });

  test('experts with the sum behind them', async () => {
    const tiny = fusedMoe();
    assert.deepEqual(stepRows(tiny), ['moe-step-int8']);
    await checkGpuRows(tiny, { tolerance: () => 1.5 * tolerance, options: { adapter }, what: 'experts' });
  });
});

test('experts with biases and a clamped activation', async () => {
  const tiny = moeGraph(moeCases['biases of experts, clamped SwiGLU'] as (typeof moeCases)[string]);
  assert.deepEqual(stepRows(tiny), ['moe-step-int8']);
  await checkGpuRows(tiny, { tolerance: () => 1.5 * tolerance, options: { adapter }, what: 'experts with biases' });
});

/** The layer of `moeCases` of K formats, and what it is added to. */
function fusedMoe(): Tiny {
  const bare = moeGraph(moeCases['softmax, normalised'] as (typeof moeCases)[string]);
  const moe = bare.graph.operations.find(({ kind }) => kind === 'moe');
  assert.ok(moe?.kind === 'moe');
  const hidden = bare.graph.widths[moe.output] as number;
  const operations: Operation[] = [
    ...bare.graph.operations.filter((operation) => operation !== moe),
    { ...moe, output: 'experts' },
    { kind: 'add', layer: 0, left: moe.input, right: 'experts', output: moe.output },
  ];
  return {
    ...bare,
    graph: { ...bare.graph, operations, widths: { ...bare.graph.widths, experts: hidden } },
  };
}
