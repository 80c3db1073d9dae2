/** Tiny graphs on the GPU, and the laws that its rows are held to: near the reference, and no bit by neighbours. */

import assert from 'node:assert/strict';
import { after } from 'node:test';
import { gpuBackend } from '../../src/backend/gpu/backend.ts';
import { MAX_STEP_ROWS, type Mode } from '../../src/backend/kernel.ts';
import { memorySource } from '../../src/format/source.ts';
import { nearByKind, ROWS, sameBits, type ToleranceOf } from '../conformance/support/compare.ts';
import { onReference, type Running, rowsStep, type Tiny, tinyPlan } from '../conformance/support/tiny-graph.ts';
import type { DeviceOptions } from '../support/device.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';

after(closeGpuTestDevice);

/** The GPU backend over a plan of `options`; the value under test is the graph's logits. */
export async function onGpu<T>(tiny: Tiny, options: DeviceOptions, use: (running: Running) => Promise<T>): Promise<T> {
  const plan = tinyPlan(tiny, { ...options, device: 'gpu' });
  const gpu = await gpuTestDevice(plan.unchecked);
  const executable = await gpuBackend({ gpu }).prepare({ ...tiny, plan, sources: [memorySource(tiny.bytes)] });
  try {
    return await use({
      executable,
      plan,
      async run(step, name = tiny.graph.logits) {
        await executable.run(step);
        return (await executable.value?.(name)) ?? new Float32Array(0);
      },
      logits: async (step) => (await executable.run(step)).slice(),
    });
  } finally {
    await executable.dispose();
  }
}

/** Rows of a run beside the whole: one, and some on both sides of what kernels may take at once. */
const counts: Readonly<Record<Mode, readonly number[]>> = { step: [1, 2, 7, 33], prompt: [1, 33, 129] };
const whole: Readonly<Record<Mode, number>> = { step: MAX_STEP_ROWS, prompt: ROWS };

/** Runs a graph of one value under test, over tables of {@link ROWS} rows, in both modes, with the driver's checks and without. */
export async function checkGpuRows(
  tiny: Tiny,
  given: { readonly tolerance: ToleranceOf; readonly options?: DeviceOptions; readonly what: string },
): Promise<void> {
  const { tolerance, options = {}, what } = given;
  const expected = await onReference(tiny, options, ({ run }) => run(rowsStep('prompt', 0, ROWS)));
  const width = expected.length / ROWS;
  const checked = await onGpu(tiny, { ...options, gpuChecks: true }, async ({ plan, run }) => {
    assert.equal(plan.unchecked, false);
    return { step: await run(rowsStep('step', 0, whole.step)), prompt: await run(rowsStep('prompt', 0, whole.prompt)) };
  });
  await onGpu(tiny, options, async ({ plan, run }) => {
    assert.equal(plan.unchecked, true);
    for (const mode of ['step', 'prompt'] as const) {
      const rows = whole[mode];
      const all = await run(rowsStep(mode, 0, rows));
      sameBits(checked[mode], all, `${what}, ${mode}, with the driver's checks`);
      nearByKind({ y: all }, { y: expected.subarray(0, rows * width) }, { rows, tolerance, what: `${what}, ${mode}` });
      for (const [index, count] of counts[mode].entries()) {
        // From another row each time, up to the last that leaves room.
        const first = index === 0 ? rows - 1 : Math.floor(((rows - count) * index) / counts[mode].length);
        sameBits(
          await run(rowsStep(mode, first, count)),
          all.subarray(first * width, (first + count) * width),
          `${what}: ${count} ${mode} rows from ${first} on`,
        );
      }
    }
  });
}
