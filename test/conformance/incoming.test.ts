/**
 * A part of a model that gets its rows from another one and gives rows on: the bits of a graph that looks the same rows
 * up itself, whatever their number.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Executable } from '../../src/backend/backend.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import { memorySource } from '../../src/format/source.ts';
import type { NormOperation } from '../../src/model/graph.ts';
import type { LayerSpec } from '../../src/model/spec.ts';
import { backendOf } from '../support/device.ts';
import { gaussians, nastyRows, random } from './support/blocks.ts';
import { ROWS, SMALL_ARENAS, sameBits } from './support/compare.ts';
import { f32Weight, noAttention, rowsStep, type Tiny, tinyGraph, tinyPlan } from './support/tiny-graph.ts';

const counts: Readonly<Record<Mode, readonly number[]>> = { step: [1, 2, 33, 64], prompt: [1, 33, ROWS] };

const layer: LayerSpec = {
  attention: noAttention,
  feedForward: { kind: 'dense', norm: { epsilon: 1e-5 }, inner: 4, activation: 'silu' },
};

/** y = norm(x), where x is looked up, and where it comes from outside. */
function graphs(width: number): {
  readonly table: Float32Array<ArrayBuffer>;
  readonly looked: Tiny;
  readonly given: Tiny;
} {
  const table = nastyRows(ROWS, width, width);
  const norm: NormOperation = {
    kind: 'norm',
    layer: 2,
    input: 'x',
    weight: 'w',
    epsilon: 1e-5,
    group: width,
    output: 'y',
  };
  const weight = gaussians(width, random(width)) as Float32Array<ArrayBuffer>;
  const looked = tinyGraph({
    rows: ROWS,
    inputs: { x: table },
    operations: [norm],
    widths: { y: width },
    output: 'y',
    weights: { w: f32Weight(weight, width) },
    layers: Array.from({ length: 4 }, () => layer),
  });
  const graph = {
    ...looked.graph,
    operations: [{ kind: 'incoming', layer: 2, output: 'x' } as const, norm],
    outgoing: 'y',
  };
  return { table, looked, given: { ...looked, graph } };
}

async function on<T>(
  tiny: Tiny,
  options: Parameters<typeof tinyPlan>[1],
  use: (executable: Executable) => Promise<T>,
): Promise<T> {
  const plan = tinyPlan(tiny, options);
  const executable = await backendOf(plan).prepare({ ...tiny, plan, sources: [memorySource(tiny.bytes)] });
  try {
    return await use(executable);
  } finally {
    await executable.dispose();
  }
}

const devices = {
  'the reference': { device: 'reference', cache: 'f32' },
  'the CPU': { device: 'cpu', threads: 1 },
  'the CPU with three threads and small arenas': { device: 'cpu', threads: 3, arenaBytes: SMALL_ARENAS },
} as const;

for (const [name, options] of Object.entries(devices)) {
  describe(name, () => {
    for (const width of [3, 67, 256]) {
      test(`takes rows of ${width} from outside, and gives all rows on`, async () => {
        const { table, looked, given } = graphs(width);
        await on(looked, options, (whole) =>
          on(given, options, async (part) => {
            for (const mode of ['step', 'prompt'] as const) {
              for (const count of counts[mode]) {
                const step = rowsStep(mode, ROWS - count, count);
                const incoming = table.subarray((ROWS - count) * width);
                await whole.run(step);
                const found = await part.run({ ...step, incoming });
                sameBits(found, (await whole.value?.('y')) as Float32Array, `${count} ${mode} rows`);
                sameBits((await part.value?.('x')) as Float32Array, incoming, 'what came in');
              }
            }
          }),
        );
      });
    }

    test('refuses a run without its rows, and with those of another', () =>
      on(graphs(67).given, options, async (executable) => {
        const step = rowsStep('step', 0, 2);
        await assert.rejects(executable.run(step), /was given no values, expected 134/);
        await assert.rejects(
          executable.run({ ...step, incoming: new Float32Array(67) }),
          /given 67 values, expected 134/,
        );
      }));

    test('says which layer gave what is not finite', () =>
      on(graphs(67).given, options, async (executable) => {
        const incoming = new Float32Array(2 * 67).fill(Number.POSITIVE_INFINITY, 70, 71);
        await assert.rejects(executable.run({ ...rowsStep('step', 0, 2), incoming }), {
          name: 'NonFiniteError',
          message: /layer [12] \(blk\.[12]\)/,
        });
      }));
  });
}
