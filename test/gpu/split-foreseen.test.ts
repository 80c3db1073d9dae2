/**
 * Experts that are foreseen: what a router names ahead is what the layer then chooses where nothing lies between the layers,
 * what was named comes to slots before all else, and whatever comes or is pinned the rows are the reference's.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { Accuracy } from '../../src/experts/predict.ts';
import { random } from '../conformance/support/blocks.ts';
import { type MoeCase, spec } from '../conformance/support/moe-cases.ts';
import { onReference, rowsStep } from '../conformance/support/tiny-graph.ts';
import { type DeviceOptions, relativeRms } from '../support/device.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { PickCounter } from '../support/pick-counter.ts';
import { prepareSplit, splitLayers, TABLE_ROWS } from '../support/split-layers.ts';

const EXPERTS = 8;
const USED = 2;
const LAYERS = 3;
const given: MoeCase = { hidden: 32, moe: spec(EXPERTS, USED, 32), formats: {} };
/** F32 weights and activations: only the order of sums is left. */
const MOST_RMS = 1e-5;
/** Of which five are prompts of 64 rows: the warm-up for pins is over. */
const RUNS = 25;

after(closeGpuTestDevice);

/** Keeps what it is told, layer by layer, and forgets it when a run begins. */
class Listener extends PickCounter {
  readonly ids = new Map<number, readonly number[]>();
  readonly foresight = new Map<number, Accuracy>();
  readonly pins = new Map<number, number>();
  override began(): void {
    this.ids.clear();
    this.foresight.clear();
  }

  override routed(...[layer, ids, found]: Parameters<PickCounter['routed']>): void {
    super.routed(layer, ids, found);
    this.ids.set(layer, Array.from(ids));
  }

  override foreseen(layer: number, accuracy: Accuracy): void {
    this.foresight.set(layer, accuracy);
  }

  override pinned(layer: number, experts: number): void {
    assert.ok(!this.pins.has(layer), 'pins are told once');
    this.pins.set(layer, experts);
  }
}

/** Runs steps of a few rows, and prompts between them, each held to the reference; `check` sees what was told of each step. */
async function runs(options: DeviceOptions, check: (listener: Listener) => void): Promise<Listener> {
  const tiny = splitLayers(given, LAYERS);
  const sizes = { context: 256, batch: 64, threads: 1 } as const;
  const model = await prepareSplit(tiny, { ...sizes, ...options }, { gpu: await gpuTestDevice() });
  const listener = new Listener();
  model.executable.watch?.(listener);
  const next = random(3);
  try {
    await onReference(tiny, sizes, async ({ logits }) => {
      for (let run = 0; run < RUNS; run++) {
        const mode = run % 5 === 4 ? 'prompt' : 'step';
        const rows = mode === 'prompt' ? TABLE_ROWS : 1 + (run % 4);
        const first = Math.floor(next() * (TABLE_ROWS - rows));
        const step = rowsStep(
          mode,
          first,
          rows,
          Array.from({ length: rows }, (_, row) => row),
        );
        const rms = relativeRms(await model.executable.run(step), await logits(step));
        assert.ok(rms <= MOST_RMS, `run ${run}, ${mode} of ${rows} rows: a relative RMS of ${rms}`);
        if (mode === 'step') check(listener);
        else assert.equal(listener.foresight.size, 0, 'of prompts nothing is foreseen');
      }
    });
    return listener;
  } finally {
    await model.executable.dispose();
  }
}

test('gate: a router that is asked ahead names what the layer then chooses, since nothing lies between', async () => {
  const listener = await runs({ expertCache: 'lfu:9', expertPrefetch: 'gate' }, ({ ids, foresight }) => {
    // Nobody is before the first.
    assert.deepEqual(foresight.get(0), { named: 0, used: new Set(ids.get(0)).size, right: 0 });
    for (const layer of [1, 2]) {
      const used = new Set(ids.get(layer)).size;
      assert.deepEqual(foresight.get(layer), { named: used, used, right: used });
    }
  });
  assert.ok(listener.uploads > 0 && listener.misses > 0);
});

test('previous: what the step before used is named, and how much of it is used again is told; the hottest are pinned', async () => {
  let before = new Map<number, ReadonlySet<number>>();
  const options = { expertCache: 'slru:9', expertPrefetch: 'previous', expertPin: '4' } as const;
  const listener = await runs(options, ({ ids, foresight }) => {
    const now = new Map([...ids].map(([layer, own]) => [layer, new Set(own)]));
    for (const [layer, used] of now) {
      const named = before.get(layer) ?? new Set();
      const right = [...used].filter((expert) => named.has(expert)).length;
      assert.deepEqual(foresight.get(layer), { named: named.size, used: used.size, right });
    }
    before = now;
  });
  assert.ok(listener.uploads > 0 && listener.hits > 0);
  assert.equal(
    [...listener.pins.values()].reduce((sum, pins) => sum + pins, 0),
    4,
  );
});
