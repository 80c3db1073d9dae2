/**
 * Laws 3 and 4 for what the GPU does to each row by itself: norms, rotation, gating, scaling and sums, at widths that are no
 * multiple of a vector or of what a workgroup takes at once.
 */

import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Builder } from '../../src/backend/gpu/builder.ts';
import type { Gpu } from '../../src/backend/gpu/device.ts';
import { emitFiniteCheck, NO_FAULT } from '../../src/backend/gpu/kernels/rowwise.ts';
import { Recorder } from '../../src/backend/gpu/recorder.ts';
import { gpuRows } from '../../src/backend/gpu/rows.ts';
import type { KernelRequest } from '../../src/backend/kernel.ts';
import type { Operation, OperationKind } from '../../src/model/graph.ts';
import type { Activation, RopeScaling } from '../../src/model/spec.ts';
import { gaussians, nastyRows, random } from '../conformance/support/blocks.ts';
import { near, ROWS, sameBits } from '../conformance/support/compare.ts';
import { requestFor } from '../conformance/support/requests.ts';
import { f32Weight, rowsStep, type TinyWeight, tinyGraph, tinyPlan } from '../conformance/support/tiny-graph.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { checkGpuRows, onGpu } from './on-gpu.ts';

/** One operation whose output is `y`. */
async function check(
  what: string,
  given: {
    readonly inputs: Readonly<Record<string, Float32Array<ArrayBuffer>>>;
    readonly operation: Operation;
    readonly width: number;
    readonly weights?: Readonly<Record<string, TinyWeight>>;
  },
): Promise<void> {
  const { inputs, operation, width, weights } = given;
  const row = gpuRows.find(({ operation: kind }) => kind === operation.kind);
  assert.ok(row !== undefined);
  const tiny = tinyGraph({
    rows: ROWS,
    inputs,
    operations: [operation],
    widths: { [operation.output]: width },
    output: operation.output,
    weights,
  });
  const planned = tinyPlan(tiny, { device: 'gpu' }).operations.at(-1)?.rows;
  assert.deepEqual(planned, { prompt: row.name, step: row.name });
  await checkGpuRows(tiny, { tolerance: () => row.tolerance.relativeRms, what });
}

const rowsOf = (kind: OperationKind) => gpuRows.filter(({ operation }) => operation === kind);

describe('norm', () => {
  assert.equal(rowsOf('norm').length, 1);
  for (const [group, groups] of [
    [1, 3],
    [4, 1],
    [20, 5],
    [67, 1],
    [64, 3],
    [128, 5],
    [1030, 1],
    [1032, 1],
    [2564, 1],
  ] as const) {
    test(`norm: ${groups} groups of ${group}`, async () => {
      const width = group * groups;
      const weight = gaussians(group, random(group)) as Float32Array<ArrayBuffer>;
      await check(`norm of ${groups} × ${group}`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operation: { kind: 'norm', layer: 0, input: 'x', weight: 'w', epsilon: 1e-5, group, output: 'y' },
        width,
        weights: { w: f32Weight(weight, group) },
      });
    });
  }
});

describe('norm with a rest', () => {
  for (const [group, groups, rest] of [
    [32, 1, 16],
    [5, 3, 2],
    [512, 1, 64],
    [4, 2, 67],
  ] as const) {
    test(`norm: ${groups} groups of ${group} and ${rest} more`, () => {
      const width = group * groups + rest;
      const weight = gaussians(group, random(group)) as Float32Array<ArrayBuffer>;
      return check(`norm of ${groups} × ${group} and ${rest}`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operation: { kind: 'norm', layer: 0, input: 'x', weight: 'w', epsilon: 1e-6, group, rest, output: 'y' },
        width,
        weights: { w: f32Weight(weight, group) },
      });
    });
  }
});

test('norm without weights, whole and in groups', async () => {
  for (const [group, groups] of [
    [67, 1],
    [64, 3],
  ] as const) {
    const width = group * groups;
    await check(`norm of ${groups} × ${group} without weights`, {
      inputs: { x: nastyRows(ROWS, width, width) },
      operation: { kind: 'norm', layer: 0, input: 'x', epsilon: 1e-5, group, output: 'y' },
      width,
    });
  }
});

test('scale: by a factor, by a weight besides, and all but the end of a row', async () => {
  assert.equal(rowsOf('scale').length, 1);
  for (const width of [1, 67, 260]) {
    for (const [weight, rest] of [
      [undefined, undefined],
      ['w', undefined],
      [undefined, Math.ceil(width / 2)],
      ['w', 1],
    ] as const) {
      await check(`scale of ${width}, all but ${rest}`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operation: { kind: 'scale', layer: 0, input: 'x', factor: -0.3, weight, rest, output: 'y' },
        width,
        weights: weight === undefined ? {} : { w: f32Weight(Float32Array.of(0.7), 1) },
      });
    }
  }
});

describe('gate', () => {
  for (const activation of ['sigmoid', 'softplus'] as const) {
    for (const [gates, share] of [
      [1, 5],
      [4, 96],
      [67, 1],
    ] as const) {
      test(`${activation}: ${gates} gates for ${share} each`, () =>
        check(`${activation} of ${gates} × ${share}`, {
          inputs: { x: nastyRows(ROWS, gates * share, gates), g: nastyRows(ROWS, gates, share) },
          operation: { kind: 'gate', layer: 0, input: 'x', gate: 'g', activation, output: 'y' },
          width: gates * share,
        }));
    }
  }
});

describe('activations', () => {
  const clamped: Activation = { kind: 'clampedSwiglu', alpha: 1.702, limit: 7 };
  for (const activation of ['geluTanh', clamped] as const) {
    const name = typeof activation === 'object' ? activation.kind : activation;
    for (const width of [1, 68, 1027]) {
      test(`${name}: ${width} wide`, () =>
        check(`${name} of ${width}`, {
          inputs: { left: nastyRows(ROWS, width, width), right: nastyRows(ROWS, width, width + 1) },
          operation: { kind: 'glu', layer: 0, gate: 'left', up: 'right', activation, output: 'y' },
          width,
        }));
    }
  }

  test('clamped SwiGLU holds gates from above and ups from both sides, and loses no NaN', async () => {
    const act = (g: number, u: number) => (g / (1 + Math.exp(-1.702 * g))) * (u + 1);
    const pairs = [
      [7, 7],
      [7.5, 100],
      [1e30, 7],
      [1, -7],
      [1, -1e30],
      [Number.NaN, 1],
      [1, Number.NaN],
    ] as const;
    const column = (of: 0 | 1) =>
      Float32Array.from({ length: ROWS * pairs.length }, (_, i) => pairs[i % pairs.length]?.[of] as number);
    const tiny = tinyGraph({
      rows: ROWS,
      inputs: { left: column(0), right: column(1) },
      operations: [{ kind: 'glu', layer: 0, gate: 'left', up: 'right', activation: clamped, output: 'y' }],
      widths: { y: pairs.length },
      output: 'y',
    });
    const found = await onGpu(tiny, {}, ({ run }) => run(rowsStep('step', 0, 1)));
    const expected = [act(7, 7), act(7, 7), act(7, 7), act(1, -7), act(1, -7)];
    near(found.slice(0, 5), Float32Array.from(expected), 1e-6, 'clamped SwiGLU');
    assert.ok(Number.isNaN(found[5]) && Number.isNaN(found[6]));
  });
});

describe('rope', () => {
  assert.equal(rowsOf('rope').length, 1);
  const scalings: readonly RopeScaling[] = [
    { kind: 'none' },
    { kind: 'factors' },
    { kind: 'yarn', factor: 4, originalContext: 64, betaFast: 32, betaSlow: 1, magnitude: 1.138, truncate: true },
  ];
  for (const [headDim, heads] of [
    [2, 3],
    [6, 1],
    [20, 5],
    [128, 3],
  ] as const) {
    test(`rope: ${heads} heads of ${headDim}, in part and whole, both pairings`, async () => {
      const dimensions = [...new Set([2, 2 * Math.floor(headDim / 4), headDim])].filter((count) => count > 0);
      const width = heads * headDim;
      const factors = gaussians(headDim / 2, random(headDim)).map((x) => 1 + Math.abs(x)) as Float32Array<ArrayBuffer>;
      for (const [i, pairing] of (['half', 'adjacent'] as const).entries()) {
        for (const [j, count] of dimensions.entries()) {
          const usual = scalings[(i + j) % scalings.length] as RopeScaling;
          // The file's factors are of one length, so only whole heads have them.
          const scaling: RopeScaling =
            count === headDim ? { kind: 'factors' } : usual.kind === 'factors' ? { kind: 'none' } : usual;
          await check(`rope of ${headDim}, ${pairing} ${count}, ${scaling.kind}`, {
            inputs: { x: nastyRows(ROWS, width, width) },
            operation: {
              kind: 'rope',
              layer: 0,
              input: 'x',
              headDim,
              rope: { pairing, dimensions: count, base: 10000, scaling },
              output: 'y',
            },
            width,
            weights: scaling.kind === 'factors' ? { ropeFactors: f32Weight(factors, headDim / 2) } : {},
          });
        }
      }
    });
  }

  for (const [headDim, heads, from, dimensions, pairing] of [
    [48, 4, 32, 16, 'adjacent'],
    [21, 2, 3, 8, 'half'],
  ] as const) {
    test(`rope: ${heads} heads of ${headDim}, ${dimensions} from ${from} on`, () => {
      const rope = { pairing, dimensions, base: 10000, scaling: { kind: 'none' } } as const;
      const width = heads * headDim;
      return check(`rope of ${headDim} from ${from} on`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operation: { kind: 'rope', layer: 0, input: 'x', headDim, from, rope, output: 'y' },
        width,
      });
    });
  }

  test('rope: rows turn by their own position, not by their place in a run', async () => {
    const rope = { pairing: 'half', dimensions: 4, base: 10, scaling: { kind: 'none' } } as const;
    const tiny = tinyGraph({
      rows: ROWS,
      inputs: { x: nastyRows(ROWS, 4, 1) },
      operations: [{ kind: 'rope', layer: 0, input: 'x', headDim: 4, rope, output: 'y' }],
      widths: { y: 4 },
      output: 'y',
    });
    await onGpu(tiny, {}, async ({ run }) => {
      const at = (position: number) => run({ ...rowsStep('step', 0, 1), positions: Int32Array.of(position) });
      const [first, far] = [await at(0), await at(255)];
      assert.notDeepEqual(first, far);
      const both = await run({
        ...rowsStep('step', 0, 2),
        tokens: Int32Array.of(0, 0),
        positions: Int32Array.of(255, 0),
        sequences: Int32Array.of(0, 1),
        pageTables: [Int32Array.of(0, 1, 2, 3), Int32Array.of(0)],
      });
      sameBits(both.subarray(0, 4), far, 'position 255');
      sameBits(both.subarray(4), first, 'position 0');
    });
  });
});

describe('glu, add and concat', () => {
  assert.equal(rowsOf('glu').length + rowsOf('add').length + rowsOf('concat').length, 3);
  for (const width of [1, 4, 67, 1028]) {
    test(`glu, add and concat: ${width} wide`, async () => {
      const inputs = { left: nastyRows(ROWS, width, width), right: nastyRows(ROWS, width, width + 1) };
      await check(`glu of ${width}`, {
        inputs,
        operation: { kind: 'glu', layer: 0, gate: 'left', up: 'right', activation: 'silu', output: 'y' },
        width,
      });
      await check(`add of ${width}`, {
        inputs,
        operation: { kind: 'add', layer: 0, left: 'left', right: 'right', output: 'y' },
        width,
      });
      const narrow = nastyRows(ROWS, 3, width + 2);
      await check(`concat of ${width}`, {
        inputs: { left: inputs.left, narrow },
        operation: { kind: 'concat', layer: 0, left: 'narrow', right: 'left', output: 'y' },
        width: width + 3,
      });
    });
  }

  test('glu: far from zero a gate is 0 or itself, and never NaN', async () => {
    const gates = [-1e30, -1000, -89, -88, -87, -50, -10, -1e-30, 0, 1e-30, 10, 50, 87, 88, 89, 1000, 1e30];
    const left = Float32Array.from({ length: ROWS * gates.length }, (_, i) => gates[i % gates.length] as number);
    const tiny = tinyGraph({
      rows: ROWS,
      inputs: { left, right: new Float32Array(left.length).fill(1) },
      operations: [{ kind: 'glu', layer: 0, gate: 'left', up: 'right', activation: 'silu', output: 'y' }],
      widths: { y: gates.length },
      output: 'y',
    });
    const found = await onGpu(tiny, {}, ({ run }) => run(rowsStep('step', 0, 1)));
    gates.forEach((gate, i) => {
      const expected = gate / (1 + Math.exp(-gate));
      // An exponential of WGSL may err by 3 + 2|x| units in the last place, and small numbers may be 0.
      const slack = (5 + 2 * Math.min(90, Math.abs(gate))) * 2 ** -23 * Math.abs(expected) + 1e-35;
      const error = Math.abs((found[i] as number) - expected);
      assert.ok(error <= slack, `silu(${gate}) is ${found[i]}, expected ${expected}`);
    });
  });
});

describe('bounds', () => {
  const glu: Operation = { kind: 'glu', layer: 0, gate: 'x', up: 'x', activation: 'silu', output: 'y' };
  const norm: Operation = { kind: 'norm', layer: 0, input: 'x', weight: 'w', epsilon: 1e-5, group: 1, output: 'y' };
  const ask = (operation: Operation, given: Partial<KernelRequest>) =>
    rowsOf(operation.kind)[0]?.accepts(requestFor(operation, { widths: { x: 4, y: 4 }, ...given }));

  test('are taken, and named beyond', () => {
    assert.equal(ask(glu, { rows: 65535 }), true);
    assert.match(String(ask(glu, { rows: 65536 })), /takes up to 65535 rows a run, found 65536/);
    assert.equal(ask(norm, { widths: { x: 65535, y: 65535 } }), true);
    assert.match(String(ask(norm, { widths: { x: 65536, y: 65536 } })), /up to 65535 groups a row, found 65536/);
  });
});

describe('finite check', () => {
  after(closeGpuTestDevice);

  test('the least layer with a NaN or an infinity in a row of the run is told, wherever it is', async () => {
    const width = 1000;
    const rows = 3;
    const { spec, graph, weights } = tinyGraph({
      rows,
      inputs: { x: new Float32Array(rows * width) },
      operations: [],
      widths: {},
      output: 'x',
    });
    const builder = new Builder({
      spec,
      graph,
      weights,
      promptRows: rows,
      wanted: 1,
      context: 64,
      cacheType: 'f16',
      features: new Set(),
    });
    const layers = [7, 3, 0, 40];
    for (const layer of layers) emitFiniteCheck(builder, 'step', 'x', layer);
    const { dispatches } = builder;
    assert.equal(new Set(dispatches.step.map(({ code }) => code)).size, 1, 'all layers share one pipeline');
    const gpu = await gpuTestDevice();
    const find = async (bad: Readonly<Record<number, readonly [at: number, value: number]>>, used: number) => {
      const step = new Uint32Array(builder.step.words);
      step[builder.step.rows] = used;
      const faults = buffer(gpu, Uint32Array.of(NO_FAULT));
      const stepBuffer = buffer(gpu, step);
      const recorder = await Recorder.make(
        gpu,
        {
          prompt: [],
          step: dispatches.step.map((dispatch, i) => ({
            ...dispatch,
            // Each layer's value under a name of its own.
            bindings: dispatch.bindings.map((binding) =>
              binding.kind === 'value' ? { ...binding, name: `${layers[i]}` } : binding,
            ),
          })),
        },
        (binding) => {
          if (binding.kind === 'step') return stepBuffer;
          if (binding.kind === 'buffer') return faults;
          const value = gaussians(rows * width, random(1)).map((x) => x * 1e37) as Float32Array<ArrayBuffer>;
          const own = bad[Number((binding as { readonly name: string }).name)];
          if (own !== undefined) value[own[0]] = own[1];
          return buffer(gpu, value);
        },
      );
      const encoder = gpu.device.createCommandEncoder();
      recorder.record(encoder, 'step', { rows: used, wanted: 0, visible: 1 });
      const read = gpu.device.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
      encoder.copyBufferToBuffer(faults, 0, read, 0, 4);
      gpu.device.queue.submit([encoder.finish()]);
      await read.mapAsync(GPUMapMode.READ);
      return new Uint32Array(read.getMappedRange())[0];
    };
    assert.equal(await find({}, rows), NO_FAULT);
    assert.equal(await find({ 40: [2999, Number.NaN] }, rows), 40);
    assert.equal(await find({ 40: [2999, Number.NaN] }, 2), NO_FAULT, 'a row beyond the run');
    assert.equal(await find({ 7: [1000, Number.POSITIVE_INFINITY], 40: [0, Number.NaN] }, rows), 7);
    assert.equal(await find({ 0: [700, Number.NEGATIVE_INFINITY], 3: [5, Number.NaN] }, rows), 0);
  });
});

function buffer({ device }: Gpu, data: Uint32Array<ArrayBuffer> | Float32Array<ArrayBuffer>): GPUBuffer {
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
  const made = device.createBuffer({ size: Math.ceil(data.byteLength / 16) * 16, usage });
  device.queue.writeBuffer(made, 0, data);
  return made;
}
