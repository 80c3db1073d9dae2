/**
 * Laws 3 and 4 for what two values, or one and its cap, go through element by element on the CPU: gates of attention,
 * activations beyond SiLU, and the soft cap on logits.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Operation } from '../../src/model/graph.ts';
import type { Activation } from '../../src/model/spec.ts';
import { gaussians, nastyRows, random } from './support/blocks.ts';
import { near, ROWS, sameBits } from './support/compare.ts';
import { checkOperations as check } from './support/cpu-operations.ts';
import { f32Weight, onCpu, onReference, rowsStep, tinyGraph } from './support/tiny-graph.ts';

describe('gate', () => {
  for (const activation of ['sigmoid', 'softplus'] as const) {
    for (const [gates, share] of [
      [1, 5],
      [4, 32],
      [3, 1],
      [67, 1],
      [5, 7],
    ] as const) {
      test(`${activation}: ${gates} gates for ${share} each`, () =>
        check(`${activation} of ${gates} × ${share}`, {
          inputs: { x: nastyRows(ROWS, gates * share, gates), g: nastyRows(ROWS, gates, share) },
          operations: [{ kind: 'gate', layer: 0, input: 'x', gate: 'g', activation, output: 'y' }],
          widths: { y: gates * share },
        }));
    }
  }

  test('softplus: far from zero a gate is 0 or itself, near zero all digits are right, and a NaN stays one', async () => {
    const gates = [-1e30, -100, -50, -20, -10, -1, -1e-3, -1e-30, 0, 1e-30, 1e-3, 1, 10, 50, 100, 1e30];
    const found = await gatesOf(gates);
    gates.forEach((gate, i) => {
      const expected = Math.max(gate, 0) + Math.log1p(Math.exp(-Math.abs(gate)));
      const error = Math.abs((found[i] as number) - expected);
      assert.ok(error <= 4e-7 * expected + 1e-37, `softplus(${gate}) is ${found[i]}, expected ${expected}`);
    });
    assert.ok(Number.isNaN((await gatesOf([Number.NaN]))[0]));
  });
});

/** softplus of each number. */
async function gatesOf(gates: readonly number[]): Promise<Float32Array> {
  const g = Float32Array.from({ length: ROWS * gates.length }, (_, i) => gates[i % gates.length] as number);
  const operations: Operation[] = [
    { kind: 'gate', layer: 0, input: 'x', gate: 'g', activation: 'softplus', output: 'y' },
  ];
  const inputs = { x: new Float32Array(g.length).fill(1), g };
  const tiny = tinyGraph({ rows: ROWS, inputs, operations, widths: { y: gates.length }, output: 'y' });
  return onCpu(tiny, {}, (cpu) => cpu.run(rowsStep('step', 0, 1)));
}

/** `activation` of pairs of a gate and an up. */
async function glusOf(activation: Activation, pairs: readonly (readonly [number, number])[]): Promise<Float32Array> {
  const column = (of: 0 | 1) =>
    Float32Array.from({ length: ROWS * pairs.length }, (_, i) => pairs[i % pairs.length]?.[of] as number);
  const inputs = { left: column(0), right: column(1) };
  const operations: Operation[] = [{ kind: 'glu', layer: 0, gate: 'left', up: 'right', activation, output: 'y' }];
  const tiny = tinyGraph({ rows: ROWS, inputs, operations, widths: { y: pairs.length }, output: 'y' });
  return onCpu(tiny, {}, (cpu) => cpu.run(rowsStep('step', 0, 1)));
}

describe('activations', () => {
  const clamped: Activation = { kind: 'clampedSwiglu', alpha: 1.702, limit: 7 };
  for (const activation of ['geluTanh', clamped] as const) {
    const name = typeof activation === 'object' ? activation.kind : activation;
    for (const width of [1, 3, 4, 5, 67, 1030]) {
      test(`${name}: ${width} wide`, () =>
        check(`${name} of ${width}`, {
          inputs: { left: nastyRows(ROWS, width, width), right: nastyRows(ROWS, width, width + 1) },
          operations: [{ kind: 'glu', layer: 0, gate: 'left', up: 'right', activation, output: 'y' }],
          widths: { y: width },
        }));
    }
  }

  test('GELU is 0 far below zero and the gate far above; a NaN stays one', async () => {
    const gates = [-1e30, -1000, -12, 0, 12, 1000, 1e12];
    const found = await glusOf('geluTanh', [...gates.map((gate) => [gate, 1] as const), [Number.NaN, 1]]);
    gates.forEach((gate, i) => {
      // Far below zero it is held to what an exponential that does not overflow leaves.
      const expected = Math.max(gate, 0);
      const error = Math.abs((found[i] as number) - expected);
      assert.ok(error <= (gate < 0 ? 1e-8 : 1e-6 * expected), `gelu(${gate}) is ${found[i]}`);
    });
    assert.ok(Number.isNaN(found[gates.length]));
  });

  test('clamped SwiGLU: gates are held from above, ups from both sides, and NaNs stay', async () => {
    const act = (g: number, u: number) => (g / (1 + Math.exp(-1.702 * g))) * (u + 1);
    const found = await glusOf(clamped, [
      [7, 7],
      [7.5, 100],
      [1e30, 7],
      [1, -7],
      [1, -1e30],
      [-1000, 3],
      [Number.NaN, 1],
      [1, Number.NaN],
    ]);
    const expected = [act(7, 7), act(7, 7), act(7, 7), act(1, -7), act(1, -7), 0];
    near(found.slice(0, 6), Float32Array.from(expected), 1e-6, 'clamped SwiGLU');
    assert.ok(Number.isNaN(found[6]) && Number.isNaN(found[7]));
  });
});

describe('soft cap', () => {
  for (const [rows, cap] of [
    [1, 30],
    [4, 2],
    [67, 0.5],
    [261, 30],
  ] as const) {
    test(`${rows} logits, capped at ${cap}`, async () => {
      const inputs = { x: nastyRows(ROWS, 32, rows) };
      const weight = f32Weight(gaussians(rows * 32, random(rows)) as Float32Array<ArrayBuffer>, rows, 32);
      const operations: Operation[] = [
        { kind: 'head', layer: 0, input: 'x', weight: 'w', softcap: cap, output: 'logits' },
      ];
      const widths = { logits: rows };
      const tiny = tinyGraph({ rows: ROWS, inputs, operations, widths, output: 'logits', weights: { w: weight } });
      const wanted = Array.from({ length: 60 }, (_, row) => row);
      const step = rowsStep('prompt', 0, 60, wanted);
      const expected = await onReference(tiny, {}, (reference) => reference.logits(step));
      assert.ok(expected.every((logit) => Math.abs(logit) <= cap));
      const found = await onCpu(tiny, {}, (cpu) => cpu.logits(step));
      // Rows of one kind beside another of other sizes: each by itself.
      for (const row of wanted) {
        const own = (values: Float32Array) => values.subarray(row * rows, (row + 1) * rows);
        near(own(found), own(expected), 2e-6, `row ${row}`);
      }
      const alone = await onCpu(tiny, { threads: 3 }, (cpu) => cpu.logits(rowsStep('prompt', 0, 60, [7])));
      sameBits(alone, found.subarray(7 * rows, 8 * rows), 'one row alone');
    });
  }
});
