/**
 * A slot never serves another expert's weights: thousands of runs whose rows take random experts, through fewer slots than
 * one run needs, each compared with the reference. Every step brings an expert to a slot that another one has just left.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { Plan } from '../../src/plan/plan.ts';
import { random } from '../conformance/support/blocks.ts';
import { type MoeCase, spec } from '../conformance/support/moe-cases.ts';
import { rowsStep } from '../conformance/support/tiny-graph.ts';
import { relativeRms } from '../support/device.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { PickCounter } from '../support/pick-counter.ts';
import { ChosenRouting, expectedOf, prepareSplit, splitLayers, TABLE_ROWS, tableOf } from '../support/split-layers.ts';

const given: MoeCase = { hidden: 32, moe: spec(8, 2, 32), formats: {} };
/** F32 weights and activations: only the order of sums is left. Another expert's weights are off by the result's size. */
const MOST_RMS = 1e-5;

after(closeGpuTestDevice);

/** Different experts for each row: most of them out of three that are hot for some runs, so that slots are of use. */
function chosen(next: () => number, run: number, rows: number): Uint32Array {
  const { experts, used } = given.moe;
  const hot = 3 * Math.floor(run / 20);
  const ids = new Uint32Array(rows * used);
  for (let row = 0; row < rows; row++) {
    const own = new Set<number>();
    while (own.size < used) {
      own.add((next() < 0.7 ? hot + Math.floor(next() * 3) : Math.floor(next() * experts)) % experts);
    }
    ids.set([...own], row * used);
  }
  return ids;
}

interface Storm {
  readonly layers: number;
  readonly cache: string;
  readonly runs: number;
  /** A prompt comes after so many steps. */
  readonly prompts: number;
}

async function storm({
  layers,
  cache,
  runs,
  prompts,
}: Storm): Promise<{ readonly plan: Plan; readonly picks: PickCounter }> {
  const tiny = splitLayers(given, layers);
  const expected = await expectedOf(tiny);
  const routing = new ChosenRouting();
  const gpu = await gpuTestDevice();
  const model = await prepareSplit(tiny, { expertCache: cache, context: 256, batch: 64, threads: 1 }, { gpu, routing });
  const picks = PickCounter.of(model.executable);
  const { hidden } = given;
  const table = tableOf(tiny);
  const next = random(layers);
  try {
    for (let run = 0; run < runs; run++) {
      const mode = run % prompts === prompts - 1 ? 'prompt' : 'step';
      const rows = mode === 'prompt' ? 1 + Math.floor(next() * TABLE_ROWS) : 1 + (run % 3);
      const first = Math.floor(next() * (TABLE_ROWS - rows));
      for (let layer = 0; layer < layers; layer++) routing.choose(layer, chosen(next, run + 7 * layer, rows));
      const all = Array.from({ length: rows }, (_, row) => row);
      const found = await model.executable.run(rowsStep(mode, first, rows, all));
      const error = relativeRms(
        found,
        expected(table.subarray(first * hidden, (first + rows) * hidden), (layer) => routing.ids(layer)),
      );
      assert.ok(error <= MOST_RMS, `${cache}, run ${run}, ${mode} of ${rows} rows: a relative RMS of ${error}`);
    }
    return { plan: model.plan, picks };
  } finally {
    await model.executable.dispose();
  }
}

test('10,000 runs of a layer through one slot', async () => {
  const { picks, plan } = await storm({ layers: 1, cache: 'slru:1', runs: 10_000, prompts: 100 });
  assert.equal(plan.experts?.slots, 1);
  const { hits, misses, passed, stops } = picks;
  assert.equal(stops, 10_000);
  // It was of use, and far too small.
  assert.ok(hits > 1_000 && misses > 10_000 && passed > 500, `${hits} hits, ${misses} misses, ${passed} passed`);
});

test('600 runs of three layers that share a few slots', async () => {
  const { picks, plan } = await storm({ layers: 3, cache: 'lfu:5', runs: 600, prompts: 20 });
  assert.deepEqual(plan.experts?.slabs, [{ layers: [0, 1, 2], slots: 5, passing: 8 }]);
  const { hits, misses, passed } = picks;
  assert.ok(hits > 1_000 && misses > 1_000 && passed > 500, `${hits} hits, ${misses} misses, ${passed} passed`);
});
