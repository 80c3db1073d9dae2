/** Which failures of a GPU the CPU stands in for, and that it says why; all others are the caller's to hear of. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CorruptFileError, DeviceLostError, InternalError, OutOfMemoryError, Refusal, SourceError } from '../errors.ts';
import type { Plan, PlanOptions } from '../plan/plan.ts';
import { startOrFallBack } from './fallback.ts';

const gpu = { device: 'gpu' } as Plan;

/** Starts on the GPU with `error`, on the CPU with success. */
function start(error: Error, options: PlanOptions = { device: 'auto' }, plan = gpu) {
  const started: Plan[] = [];
  return startOrFallBack({
    options,
    plan,
    async start(made) {
      started.push(made);
      if (started.length === 1) throw error;
      return started;
    },
    planWithoutGpu: (deviceReason) => ({ device: 'cpu', deviceReason }) as Plan,
  });
}

test('what starts is left alone', async () => {
  const plan = await startOrFallBack({
    options: { device: 'auto' },
    plan: gpu,
    start: async () => 'ready',
    planWithoutGpu: () => assert.fail('nothing failed'),
  });
  assert.deepEqual(plan, { engine: 'ready', plan: gpu });
});

test('a GPU that fails is given up for the CPU, with the reason', async () => {
  for (const [error, reason] of [
    [
      new OutOfMemoryError('the GPU has no memory left: 3 GB; choose a smaller model'),
      'the GPU has no memory left: 3 GB',
    ],
    [new DeviceLostError('the GPU gave no device: driver'), 'the GPU gave no device: driver'],
    [new Refusal('no GPU was found: check its driver, or use --device cpu'), 'no GPU was found: check its driver'],
    [new InternalError('the kernel of x does not compile'), /^the kernel of x does not compile/],
  ] as const) {
    const { plan, engine } = await start(error);
    assert.equal(plan.device, 'cpu');
    if (typeof reason === 'string') assert.equal(plan.deviceReason, reason);
    else assert.match(plan.deviceReason ?? '', reason);
    assert.deepEqual(engine, [gpu, plan]);
  }
});

test('what the CPU would do no better, and a GPU that was asked for, is an error', async () => {
  const lost = new DeviceLostError('gone');
  for (const [error, options, plan] of [
    [new CorruptFileError('broken'), { device: 'auto' }, gpu],
    [new SourceError('unreadable'), { device: 'auto' }, gpu],
    [new RangeError('a surprise'), { device: 'auto' }, gpu],
    [lost, { device: 'gpu' }, gpu],
    [lost, { gpuLayers: 3 }, gpu],
    [lost, { device: 'auto' }, { device: 'cpu' } as Plan],
  ] as const) {
    await assert.rejects(start(error, options, plan), (thrown) => thrown === error);
  }
});
