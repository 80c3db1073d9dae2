/**
 * Laws 3 and 4 for what is done to each row by itself: embedding lookup in every format, norms, rotation, gating, scaling
 * and sums, at widths that are no multiple of a vector or of what a loop takes at once.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Operation } from '../../src/model/graph.ts';
import type { RopeScaling } from '../../src/model/spec.ts';
import { formatOf } from '../../src/quant/index.ts';
import { f32Of, readSafetensors, tensorOf } from '../support/safetensors.ts';
import { decoded, gaussians, nastyRows, random, randomWeight } from './support/blocks.ts';
import { checkRows, checkSameBits, near, PLAIN, ROWS, SMALL_ARENAS, sameBits } from './support/compare.ts';
import { checkOperations as check, cpuRowsOf as rowsOf } from './support/cpu-operations.ts';
import { formatOfRow } from './support/requests.ts';
import {
  bindWeights,
  f32Weight,
  onCpu,
  rowsStep,
  type Tiny,
  type TinyWeight,
  tinyGraph,
  tinyPlan,
} from './support/tiny-graph.ts';

/** An embedding alone: the weight is what is under test. */
function embedding(weight: TinyWeight): Tiny {
  const [rows, columns] = weight.shape as readonly [number, number];
  const operations: Operation[] = [{ kind: 'embed', layer: -1, weight: 'embedding', output: 'y' }];
  const spec = {
    ...tinyGraph({ rows, inputs: { x: new Float32Array(rows) }, operations: [], widths: {}, output: 'x' }).spec,
    hidden: columns,
  };
  return {
    spec,
    graph: { operations, widths: { y: columns }, logits: 'y', hidden: [] },
    ...bindWeights({ embedding: weight }),
  };
}

describe('embed', () => {
  for (const row of rowsOf('embed')) {
    const format = formatOfRow(row);
    const { blockLength, blockBytes } = formatOf(format);

    test(`${row.name}: gives the reference's bits, in the first arena and in another`, async () => {
      const columns = blockLength === 1 ? 67 : blockLength < 256 ? 9 * blockLength : 512;
      // 203 rows: the last group of four is not full.
      const bytes = randomWeight(format, 203 * columns, 4);
      const tiny = embedding({ format, shape: [203, columns], bytes });
      assert.deepEqual(tinyPlan(tiny).operations[0]?.rows, { prompt: row.name, step: row.name });
      const values = await checkRows(tiny, { names: ['y'], tolerance: () => row.tolerance.relativeRms, what: format });
      sameBits(values.y as Float32Array, decoded(format, bytes).subarray(0, ROWS * columns), format);
      await checkSameBits(tiny, values, { arenaBytes: SMALL_ARENAS }, `${format}, arenas of 64 KiB`);
      await checkSameBits(tiny, values, { features: PLAIN }, `${format}, plain SIMD`);
      await onCpu(tiny, {}, async (cpu) => {
        const last = await cpu.run({ ...rowsStep('step', 0, 1), tokens: Int32Array.of(202) });
        sameBits(last, decoded(format, bytes).subarray(202 * columns), `${format}, the last row`);
      });
    });

    test(`${row.name}: every bit pattern of a block means what is recorded of it`, async () => {
      const file = format.endsWith('_K') ? `${format.slice(0, -2).toLowerCase()}_K` : format.toLowerCase();
      const tensors = readSafetensors(new URL(`../fixtures/quant/${file}.safetensors`, import.meta.url));
      const { bytes } = tensorOf(tensors, 'random_bytes', 'U8');
      const rows = bytes.length / blockBytes;
      const tiny = embedding({ format, shape: [rows, blockLength], bytes });
      await onCpu(tiny, { batch: rows }, async (cpu) => {
        const step = { ...rowsStep('prompt', 0, rows), positions: new Int32Array(rows) };
        sameBits(await cpu.run(step), f32Of(tensors, 'random_floats'), format);
      });
    });
  }
});

describe('norm', () => {
  assert.equal(rowsOf('norm').length, 1);
  for (const width of [1, 2, 3, 4, 5, 7, 12, 15, 16, 17, 31, 33, 64, 100, 515]) {
    test(`norm: ${width} wide, whole and in groups`, () => {
      const groups = [1, 2, 3, 5, 16].filter((count) => width % count === 0);
      const operations = groups.map(
        (count): Operation => ({
          kind: 'norm',
          layer: 0,
          input: 'x',
          weight: `w${count}`,
          epsilon: count === 1 ? 1e-5 : 1e-6,
          group: width / count,
          output: `y${count}`,
        }),
      );
      const next = random(width);
      return check(`norm of ${width}`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operations,
        widths: Object.fromEntries(groups.map((count) => [`y${count}`, width])),
        weights: Object.fromEntries(
          groups.map((count) => [
            `w${count}`,
            f32Weight(gaussians(width / count, next) as Float32Array<ArrayBuffer>, width / count),
          ]),
        ),
      });
    });
  }
});

describe('norm without weights', () => {
  for (const width of [1, 3, 4, 17, 64, 515]) {
    test(`${width} wide, whole and in groups`, () => {
      const groups = [1, 2, 3, 5, 16].filter((count) => width % count === 0);
      const operations = groups.map((count): Operation => {
        const group = width / count;
        return { kind: 'norm', layer: 0, input: 'x', epsilon: 1e-5, group, output: `y${count}` };
      });
      return check(`norm of ${width} without weights`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operations,
        widths: Object.fromEntries(groups.map((count) => [`y${count}`, width])),
      });
    });
  }
});

describe('scales', () => {
  for (const width of [1, 3, 4, 5, 64, 515]) {
    test(`scale: ${width} wide, by a factor and by a weight, whole and in part`, () => {
      const operations: Operation[] = [
        { kind: 'scale', layer: 0, input: 'x', factor: 0.125, output: 'by factor' },
        { kind: 'scale', layer: 0, input: 'x', factor: 1, weight: 'w', output: 'by weight' },
        { kind: 'scale', layer: 0, input: 'x', factor: -3.3, weight: 'w', output: 'by both' },
        { kind: 'scale', layer: 0, input: 'x', factor: -0.22, rest: 1, output: 'all but the last' },
        { kind: 'scale', layer: 0, input: 'x', factor: 5, weight: 'w', rest: Math.ceil(width / 2), output: 'half' },
      ];
      return check(`scale of ${width}`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operations,
        widths: Object.fromEntries(operations.map(({ output }) => [output, width])),
        weights: { w: f32Weight(Float32Array.of(0.7), 1) },
      });
    });
  }

  test('embed: what an embedding is multiplied with, in the first arena and in another', async () => {
    for (const [format, columns] of [
      ['BF16', 67],
      ['Q4_K', 512],
    ] as const) {
      const bytes = randomWeight(format, 203 * columns, 4);
      const plain = embedding({ format, shape: [203, columns], bytes });
      const [operation] = plain.graph.operations as [Operation & { readonly kind: 'embed' }];
      const tiny = { ...plain, graph: { ...plain.graph, operations: [{ ...operation, scale: Math.sqrt(columns) }] } };
      const values = await checkRows(tiny, { names: ['y'], tolerance: () => 1e-6, what: format });
      await checkSameBits(tiny, values, { arenaBytes: SMALL_ARENAS }, `${format}, arenas of 64 KiB`);
    }
  });
});

describe('norm with a rest', () => {
  for (const [group, count, rest] of [
    [1, 1, 1],
    [32, 1, 16],
    [5, 3, 2],
    [64, 2, 67],
  ] as const) {
    test(`norm: ${count} groups of ${group} and ${rest} more`, () => {
      const width = group * count + rest;
      return check(`norm of ${width}`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operations: [{ kind: 'norm', layer: 0, input: 'x', weight: 'w', epsilon: 1e-6, group, rest, output: 'y' }],
        widths: { y: width },
        weights: { w: f32Weight(gaussians(group, random(width)) as Float32Array<ArrayBuffer>, group) },
      });
    });
  }
});

describe('rope', () => {
  assert.equal(rowsOf('rope').length, 1);
  const scalings: readonly RopeScaling[] = [
    { kind: 'none' },
    { kind: 'linear', factor: 4 },
    { kind: 'factors' },
    { kind: 'yarn', factor: 4, originalContext: 64, betaFast: 32, betaSlow: 1, magnitude: 1.138, truncate: true },
  ];
  for (const [headDim, heads] of [
    [2, 3],
    [6, 1],
    [20, 5],
    [64, 2],
    [128, 5],
    [132, 1],
  ] as const) {
    test(`rope: ${heads} heads of ${headDim}, in part and whole, both pairings`, async () => {
      const parts = [...new Set([2, 2 * Math.floor(headDim / 4), headDim])].filter((dimensions) => dimensions > 0);
      const width = heads * headDim;
      for (const scaling of scalings) {
        const operations = (['half', 'adjacent'] as const).flatMap((pairing) =>
          // The file's factors are of one length, so only whole heads have them.
          parts
            .filter((dimensions) => scaling.kind !== 'factors' || dimensions === headDim)
            .map(
              (dimensions): Operation => ({
                kind: 'rope',
                layer: 0,
                input: 'x',
                headDim,
                rope: { pairing, dimensions, base: 10000, scaling },
                output: `${pairing} ${dimensions}`,
              }),
            ),
        );
        const next = random(headDim);
        const factors = Float32Array.from({ length: headDim / 2 }, () => 1 + 7 * next());
        await check(`rope of ${headDim}, ${scaling.kind}`, {
          inputs: { x: nastyRows(ROWS, width, width) },
          operations,
          widths: Object.fromEntries(operations.map(({ output }) => [output, width])),
          weights: scaling.kind === 'factors' ? { ropeFactors: f32Weight(factors, headDim / 2) } : {},
        });
      }
    });
  }

  for (const [headDim, heads, from, dimensions] of [
    [6, 3, 4, 2],
    [48, 4, 32, 16],
    [21, 2, 3, 8],
  ] as const) {
    test(`rope: ${heads} heads of ${headDim}, ${dimensions} from ${from} on, both pairings`, () => {
      const width = heads * headDim;
      const operations = (['half', 'adjacent'] as const).map((pairing): Operation => {
        const rope = { pairing, dimensions, base: 10000, scaling: { kind: 'none' } } as const;
        return { kind: 'rope', layer: 0, input: 'x', headDim, from, rope, output: pairing };
      });
      return check(`rope of ${headDim} from ${from} on`, {
        inputs: { x: nastyRows(ROWS, width, width) },
        operations,
        widths: Object.fromEntries(operations.map(({ output }) => [output, width])),
      });
    });
  }

  test('rope: rows turn by their own position, not by their place in a run', async () => {
    const rope = { pairing: 'half', dimensions: 4, base: 10, scaling: { kind: 'none' } } as const;
    const operations: Operation[] = [{ kind: 'rope', layer: 0, input: 'x', headDim: 4, rope, output: 'y' }];
    const inputs = { x: nastyRows(ROWS, 4, 1) };
    const tiny = tinyGraph({ rows: ROWS, inputs, operations, widths: { y: 4 }, output: 'y' });
    await onCpu(tiny, {}, async (cpu) => {
      const at = (position: number) => cpu.run({ ...rowsStep('step', 0, 1), positions: Int32Array.of(position) });
      const [first, far] = [await at(0), await at(255)];
      assert.notDeepEqual(first, far);
      const both = await cpu.run({
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
  for (const width of [1, 3, 4, 5, 17, 64, 67, 1030]) {
    test(`glu, add and concat: ${width} wide`, async () => {
      const [left, right] = [nastyRows(ROWS, width, width), nastyRows(ROWS, width, width + 1)];
      const inputs = { left, right };
      await check(`glu of ${width}`, {
        inputs,
        operations: [{ kind: 'glu', layer: 0, gate: 'left', up: 'right', activation: 'silu', output: 'y' }],
        widths: { y: width },
      });
      await check(`add of ${width}`, {
        inputs,
        operations: [{ kind: 'add', layer: 0, left: 'left', right: 'right', output: 'y' }],
        widths: { y: width },
      });
      // Of two widths, in both orders.
      const narrow = nastyRows(ROWS, 3, width + 2);
      await check(`concat of ${width}`, {
        inputs: { left, narrow },
        operations: [
          { kind: 'concat', layer: 0, left: 'left', right: 'narrow', output: 'y' },
          { kind: 'concat', layer: 0, left: 'narrow', right: 'left', output: 'z' },
        ],
        widths: { y: width + 3, z: width + 3 },
      });
    });
  }

  test('glu: far from zero a gate is 0 or itself, and never NaN', async () => {
    const gates = [-1e30, -1000, -89, -88, -87, -50, -10, -1e-30, 0, 1e-30, 10, 50, 87, 88, 89, 1000, 1e30];
    const left = Float32Array.from({ length: ROWS * gates.length }, (_, i) => gates[i % gates.length] as number);
    const right = new Float32Array(left.length).fill(1);
    const operations: Operation[] = [
      { kind: 'glu', layer: 0, gate: 'left', up: 'right', activation: 'silu', output: 'y' },
    ];
    const tiny = tinyGraph({
      rows: ROWS,
      inputs: { left, right },
      operations,
      widths: { y: gates.length },
      output: 'y',
    });
    await onCpu(tiny, {}, async (cpu) => {
      const found = await cpu.run(rowsStep('step', 0, 1));
      gates.forEach((gate, i) => {
        const expected = gate / (1 + Math.exp(-gate));
        const slack = 1e-6 * Math.abs(expected) + (gate < -80 ? 1e-8 : 0);
        assert.ok(
          Math.abs((found[i] as number) - expected) <= slack,
          `silu(${gate}) is ${found[i]}, expected ${expected}`,
        );
      });
      near(
        found.slice(8),
        Float32Array.from(gates.slice(8), (gate) => gate / (1 + Math.exp(-gate))),
        1e-6,
        'silu',
      );
    });
  });
});
