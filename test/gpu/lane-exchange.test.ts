/**
 * Products of step rows whose lanes share by exchange: near the same products through workgroup memory, which the other
 * suites hold to the reference, and the same bits for a row whatever rows are beside it. Exchanges are written out, so that
 * any device runs them.
 */

import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { INT8_FEATURE } from '../../src/backend/gpu/int8.ts';
import { MATRIX_FEATURE } from '../../src/backend/gpu/kernels/matrix.ts';
import type { GpuRow } from '../../src/backend/gpu/row.ts';
import { gpuRows } from '../../src/backend/gpu/rows.ts';
import type { Operation } from '../../src/model/graph.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { gaussians, nastyRows, random } from '../conformance/support/blocks.ts';
import { near, sameBits } from '../conformance/support/compare.ts';
import { spec } from '../conformance/support/moe-cases.ts';
import { emulatedLanes } from '../support/emulated-lanes.ts';
import { closeGpuTestDevice } from '../support/gpu.ts';
import { builderOf, type DeviceWeight, deviceWeight, type Held, heldOf, runProgram } from '../support/gpu-program.ts';

after(closeGpuTestDevice);

/** Both round the same bytes alike; sums go in other orders. */
const MOST_RMS = 2e-5;
/** More rows than a tile has. */
const ROWS = 6;

interface Case {
  readonly row: string;
  readonly operation: Operation;
  readonly columns: number;
  readonly width: number;
  readonly weights: readonly DeviceWeight[];
  readonly held?: Held;
  readonly widths?: Readonly<Record<string, number>>;
}

function vector(count: number, seed: number): Float32Array<ArrayBuffer> {
  return gaussians(count, random(seed)).map((x) => 1 + 0.1 * x) as Float32Array<ArrayBuffer>;
}

async function check({ row: name, operation, columns, width, weights, held = {}, widths = {} }: Case): Promise<void> {
  const row = gpuRows.find((each) => each.name === name) as GpuRow;
  const x = nastyRows(ROWS, columns, columns);
  const add = gaussians(ROWS * width, random(4)) as Float32Array<ArrayBuffer>;
  const runs = [[INT8_FEATURE, MATRIX_FEATURE], [INT8_FEATURE]].map((features) => {
    const builder = builderOf(ROWS, weights, { x: columns, y: width, add: width, ...widths }, features);
    row.emit(operation, builder, 'step');
    const exchanging = builder.dispatches.step.filter(({ code }) => code.includes('subgroupShuffleXor'));
    assert.equal(exchanging.length > 0, features.length > 1);
    return async (first: number, rows: number) => {
      const given = { ...heldOf(weights), ...held, x: x.slice(first * columns), add: add.slice(first * width) };
      const all = await runProgram(builder, 'step', { rows, held: given, output: 'y', rewrite: emulatedLanes });
      return all.slice(0, rows * width);
    };
  });
  const [exchanged, gathered] = runs as [(typeof runs)[0], (typeof runs)[0]];
  const found = await exchanged(0, ROWS);
  const expected = await gathered(0, ROWS);
  for (let t = 0; t < ROWS; t++) {
    const own = [found, expected].map((values) => values.subarray(t * width, (t + 1) * width));
    near(own[0] as Float32Array, own[1] as Float32Array, MOST_RMS, `${name}, row ${t}`);
  }
  for (const [first, rows] of [
    [0, 1],
    [ROWS - 1, 1],
    [1, 2],
    [2, 4],
  ] as const) {
    const some = await exchanged(first, rows);
    sameBits(some, found.subarray(first * width, (first + rows) * width), `${name}: ${rows} rows from ${first} on`);
  }
}

const base = { layer: 0, input: 'x', output: 'y' } as const;
const norm = { weight: 'norm', epsilon: 1e-6 };

function side(formats: readonly FormatId[], counts: readonly number[], columns: number): DeviceWeight[] {
  return formats.map((format, i) => deviceWeight(`w${i}`, format, [counts[i] as number, columns]));
}

describe('products that exchange', () => {
  test('a subgroup a weight row: several matrices and formats, a norm and biases', async () => {
    const weights = side(['Q4_K', 'Q6_K', 'Q4_K'], [43, 9, 21], 2048);
    const parts = weights.map(({ weight }, i) => ({ weight: weight.name, bias: i === 1 ? 'bias' : undefined }));
    await check({
      row: 'project-step-int8',
      operation: { ...base, kind: 'project', parts, norm },
      columns: 2048,
      width: 73,
      weights,
      held: { norm: vector(2048, 1), bias: vector(9, 2) },
    });
  });

  test('several subgroups a weight row, and a sum behind it', async () => {
    const weights = side(['Q4_K'], [70], 4096);
    await check({
      row: 'project-step-int8',
      operation: { ...base, kind: 'project', parts: [{ weight: 'w0' }], add: 'add' },
      columns: 4096,
      width: 70,
      weights,
    });
  });

  test('rows of several rounds, with a norm', async () => {
    const weights = side(['Q5_K'], [30], 8192);
    await check({
      row: 'project-step-int8',
      operation: { ...base, kind: 'project', parts: [{ weight: 'w0' }], norm, add: 'add' },
      columns: 8192,
      width: 30,
      weights,
      held: { norm: vector(8192, 1) },
    });
  });

  test('so many weight rows that a workgroup takes several turns', async () => {
    const weights = side(['Q4_K', 'Q6_K'], [8192, 70], 2048);
    await check({
      row: 'project-step-int8',
      operation: { ...base, kind: 'project', parts: weights.map(({ weight }) => ({ weight: weight.name })), norm },
      columns: 2048,
      width: 8262,
      weights,
      held: { norm: vector(2048, 1) },
    });
  });

  test('gate and up of a dense layer', async () => {
    const weights = side(['Q4_K', 'Q6_K'], [4200, 4200], 2048);
    await check({
      row: 'gated-step-int8',
      operation: { ...base, kind: 'gated', gate: 'w0', up: 'w1', activation: 'silu', norm },
      columns: 2048,
      width: 4200,
      weights,
      held: { norm: vector(2048, 1) },
    });
  });

  // A narrow one has no whole number of neighbours, and fewer groups than the experts.
  for (const [shared, biases] of [[undefined], [256], [96], [256, true]] as const) {
    const beside = shared === undefined ? 'alone' : `and one of ${shared} that all rows take`;
    test(`experts, ${beside}${biases ? ', with biases' : ''}`, async () => {
      const [experts, inner, hidden] = [6, 256, 2048];
      const weights = [
        deviceWeight('m.router', 'F32', [experts, hidden]),
        ...['gate', 'up'].map((part) => deviceWeight(`m.${part}`, 'Q4_K', [experts, inner, hidden])),
        deviceWeight('m.down', 'Q6_K', [experts, hidden, inner]),
        ...(shared === undefined
          ? []
          : [
              deviceWeight('m.shared.router', 'F32', [1, hidden]),
              ...['gate', 'up'].map((part) => deviceWeight(`m.shared.${part}`, 'Q5_K', [shared, hidden])),
              deviceWeight('m.shared.down', 'MXFP4', [hidden, shared]),
            ]),
      ];
      const moe = spec(experts, 2, inner, {
        ...(shared === undefined ? {} : { shared: { inner: shared, gated: true } }),
        ...(biases ? { biases } : {}),
      });
      const vectors = {
        'm.gate.bias': vector(experts * inner, 2),
        'm.up.bias': vector(experts * inner, 3),
        'm.down.bias': vector(experts * hidden, 4),
      };
      await check({
        row: 'moe-step-int8',
        operation: { ...base, kind: 'moe', prefix: 'm', moe, norm, add: 'add' },
        columns: hidden,
        width: hidden,
        weights,
        held: { norm: vector(hidden, 1), ...(biases ? vectors : {}) },
      });
    });
  }
});
