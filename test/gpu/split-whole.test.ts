/**
 * A layer all of whose experts are in slots never leaves the device: a run has no stop for it, its rows are the reference's
 * all the same, and what it chose is still told, when the run is over.
 */

import assert from 'node:assert/strict';
import { after, mock, test } from 'node:test';
import type { Executable } from '../../src/backend/backend.ts';
import { Pulse } from '../../src/backend/gpu/pulse.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import { RunStats } from '../../src/experts/stats.ts';
import { random } from '../conformance/support/blocks.ts';
import { type MoeCase, spec } from '../conformance/support/moe-cases.ts';
import { onReference, rowsStep } from '../conformance/support/tiny-graph.ts';
import { relativeRms } from '../support/device.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { ChosenRouting, expectedOf, prepareSplit, splitLayers, tableOf } from '../support/split-layers.ts';

const EXPERTS = 4;
const given: MoeCase = { hidden: 32, moe: spec(EXPERTS, 2, 32), formats: {} };
const LAYERS = 3;
/** F32 weights and activations: only the order of sums is left. */
const MOST_RMS = 1e-5;
const options = { context: 256, batch: 64, threads: 1 } as const;

// What keeps a device awake is submitted as well, and no part of a run.
mock.method(Pulse.prototype, 'beat', () => {});

/** Kernels live as long as somebody uses them. */
const kept: Executable[] = [];

after(async () => {
  for (const executable of kept) await executable.dispose();
  await closeGpuTestDevice();
});

/** Counts what is submitted while `act` is under way. */
async function submissions<T>(act: () => Promise<T>): Promise<{ readonly result: T; readonly count: number }> {
  const { queue } = (await gpuTestDevice()).device;
  const submit = queue.submit.bind(queue);
  let count = 0;
  queue.submit = (commands) => {
    count++;
    submit(commands);
  };
  try {
    return { result: await act(), count };
  } finally {
    queue.submit = submit;
  }
}

const allOf = (rows: number) => Array.from({ length: rows }, (_, row) => row);

function statsOf(executable: Executable): RunStats {
  const stats = new RunStats(allOf(LAYERS), EXPERTS);
  executable.watch?.(stats);
  return stats;
}

const runs: readonly (readonly [Mode, first: number, rows: number])[] = [
  ['step', 3, 1],
  ['prompt', 7, 40],
  ['step', 20, 5],
  ['prompt', 0, 9],
  ['step', 50, 2],
];

test('experts that never leave their slots: no submission for layers that are whole, before, between and behind others', async () => {
  const tiny = splitLayers(given, LAYERS);
  const gpu = await gpuTestDevice();
  const hot = new Float64Array(EXPERTS).fill(9);
  const some = Float64Array.of(3, 0, 0, 2);
  for (const whole of [[1], [0, 2]]) {
    const expertUses = allOf(LAYERS).map((layer) => (whole.includes(layer) ? hot : some));
    const slots = whole.length * EXPERTS + 1;
    const model = await prepareSplit(tiny, { ...options, expertCache: `static:${slots}`, expertUses }, { gpu });
    const stats = statsOf(model.executable);
    try {
      assert.deepEqual(model.plan.experts?.whole, whole);
      for (const [mode, first, rows] of runs) {
        const step = rowsStep(mode, first, rows, allOf(rows));
        const { result, count } = await submissions(() => model.executable.run(step));
        const expected = await onReference(tiny, options, ({ logits }) => logits(step));
        const what = `${mode} of ${rows} rows, layers ${whole} whole`;
        assert.ok(relativeRms(result, expected) <= MOST_RMS, `${what}: ${relativeRms(result, expected)}`);
        // Of a prompt experts pass through besides.
        if (mode === 'step') assert.equal(count, 1 + LAYERS - whole.length, what);
      }
      for (const mode of ['prompt', 'step'] as const) {
        const own = runs.filter(([each]) => each === mode);
        const rows = own.reduce((sum, [, , count]) => sum + count, 0);
        const counted = stats.snapshot()[mode];
        assert.equal(counted.steps, own.length);
        for (const { layer, picks, hits, steps, stops, wait } of counted.layers) {
          assert.deepEqual([steps, picks], [own.length, rows * given.moe.used]);
          assert.equal(stops, whole.includes(layer) ? 0 : own.length);
          assert.equal(wait.roundTripMs > 0, !whole.includes(layer));
          if (whole.includes(layer)) assert.equal(hits, picks);
        }
      }
    } finally {
      kept.push(model.executable);
    }
  }
});

test('a layer becomes whole as its experts come, and stops again when one of them leaves', async () => {
  const tiny = splitLayers(given, LAYERS);
  const gpu = await gpuTestDevice();
  const routing = new ChosenRouting();
  const expected = await expectedOf(tiny);
  const model = await prepareSplit(tiny, { ...options, expertCache: 'lfu:8' }, { gpu, routing });
  const { executable } = model;
  const stats = statsOf(executable);
  const { hidden, moe } = given;
  const [table, next] = [tableOf(tiny), random(5)];
  /** Rows of `wide` go to all experts, those of other layers to two. */
  const run = async (mode: Mode, wide: number, rows: number) => {
    const first = Math.floor(next() * 20);
    for (const layer of allOf(LAYERS)) {
      const ids = allOf(rows).flatMap((row) => (layer === wide && row % 2 === 1 ? [2, 3] : [row % 2, 1 - (row % 2)]));
      routing.choose(layer, Uint32Array.from(ids));
    }
    const result = await executable.run(rowsStep(mode, first, rows, allOf(rows)));
    const rms = relativeRms(
      result,
      expected(table.subarray(first * hidden, (first + rows) * hidden), (layer) => routing.ids(layer)),
    );
    assert.ok(rms <= MOST_RMS, `${mode} of ${rows} rows, layer ${wide} to all: ${rms}`);
  };
  const stops = () => stats.snapshot().step.layers.map((layer) => layer.stops);
  try {
    let before = stops();
    for (const wide of [1, 0, 2]) {
      // Two runs bring an expert, so that counts of the layer that was wide before are soon the lower ones.
      for (let round = 0; round < 14; round++) await run(round % 5 === 4 ? 'prompt' : 'step', wide, 6);
      before = stops();
      for (let round = 0; round < 3; round++) await run('step', wide, 1 + round);
      const after = stops();
      assert.deepEqual(
        after.map((count, layer) => count - (before[layer] as number)),
        allOf(LAYERS).map((layer) => (layer === wide ? 0 : 3)),
      );
    }
    const { layers, steps } = stats.snapshot().step;
    for (const { steps: own, picks, stops: stopped } of layers) {
      assert.equal(own, steps);
      assert.ok(picks > 0 && stopped > 0 && stopped < steps, `${stopped} stops in ${steps} runs`);
    }
    assert.equal(moe.experts, EXPERTS);
  } finally {
    await executable.dispose();
  }
});
