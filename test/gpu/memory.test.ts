/**
 * What a model takes of the device's memory is what its plan says, and within what may be used: loading, prompts, steps with
 * experts on their way, and measuring them, every buffer counted; and nothing of it is left when the model is gone.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gpuBackend } from '../../src/backend/gpu/backend.ts';
import { Gpu } from '../../src/backend/gpu/device.ts';
import { memorySource } from '../../src/format/source.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { type MoeCase, spec } from '../conformance/support/moe-cases.ts';
import { rowsStep, tinyPlan } from '../conformance/support/tiny-graph.ts';
// Points the Vulkan loader at a driver before Dawn is opened.
import '../support/gpu.ts';
import { PickCounter } from '../support/pick-counter.ts';
import { prepareSplit, splitLayers, TABLE_ROWS } from '../support/split-layers.ts';

/** Experts of 49 kB, 64 of them, are more than half of what all of it takes. */
const given: MoeCase = { hidden: 64, moe: spec(32, 4, 64), formats: {} };
const tiny = splitLayers(given, 2);
const options = { context: 256, batch: 64, threads: 1 } as const;
const BUDGET = 5.8e6;
/** Of what is planned some is for the largest runs that there may be, and for rows that are not of whole staging buffers. */
const LEAST_SHARE = 0.75;

function within(gpu: Gpu, planned: number): void {
  const { peakBytes } = gpu.memory;
  assert.ok(peakBytes <= planned, `${peakBytes} bytes at the most, ${planned} were planned`);
  assert.ok(peakBytes >= LEAST_SHARE * planned, `${peakBytes} bytes at the most, and ${planned} were planned`);
}

const stepOf = (mode: 'prompt' | 'step', first: number, rows: number) =>
  rowsStep(
    mode,
    first,
    rows,
    Array.from({ length: rows }, (_, row) => row),
  );

test('a split model stays within its budget, as its plan says, with experts on their way', async () => {
  const gpu = await Gpu.open(nodePlatform);
  try {
    const { executable, plan } = await prepareSplit(
      tiny,
      { ...options, expertCache: 'lfu', gpuMemoryBytes: BUDGET },
      { gpu },
    );
    const [part] = plan.parts;
    const { slots = 0, experts = 0 } = plan.experts ?? {};
    assert.ok(part !== undefined && slots > 4 && slots < experts, `${slots} of ${experts}`);
    assert.ok(part.bytes.total <= BUDGET && part.bytes.total > 0.95 * BUDGET, `${part.bytes.total} bytes are planned`);
    const picks = PickCounter.of(executable);
    for (let run = 0; run < 12; run++) {
      await executable.run(run % 4 === 0 ? stepOf('prompt', 0, TABLE_ROWS) : stepOf('step', 4 * run, 1 + run));
      assert.ok(gpu.memory.bytes <= BUDGET);
    }
    assert.ok(picks.hits > 0 && picks.misses > 0 && picks.passed > 0 && picks.uploads > 0);
    await executable.profile?.(stepOf('step', 0, 2), 1);
    within(gpu, part.bytes.total);
    const { memory } = executable;
    assert.deepEqual(memory, { device: 'gpu', bytes: gpu.memory.bytes, peakBytes: gpu.memory.peakBytes });
    await executable.dispose();
    assert.equal(gpu.memory.bytes, 0);
  } finally {
    gpu.close();
  }
});

test('so does one that the device has whole', async () => {
  const gpu = await Gpu.open(nodePlatform);
  try {
    const plan = tinyPlan(tiny, { ...options, device: 'gpu' });
    const executable = await gpuBackend({ gpu }).prepare({ ...tiny, plan, sources: [memorySource(tiny.bytes)] });
    await executable.run(stepOf('prompt', 0, TABLE_ROWS));
    await executable.run(stepOf('step', 3, 5));
    within(gpu, plan.bytes.total);
    await executable.dispose();
    assert.equal(gpu.memory.bytes, 0);
  } finally {
    gpu.close();
  }
});
