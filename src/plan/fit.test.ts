/** What a GPU takes of a model: all of it where that fits, layers without their experts where little does, and why; and how many threads that leaves. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { aCard, type DeviceOptions, planFor } from '../../test/support/device.ts';
import { familyModel, largeModel } from '../../test/support/planned-models.ts';
import type { AdapterFacts } from '../backend/gpu/device.ts';
import { OutOfMemoryError } from '../errors.ts';
import { detectFeatures } from '../platform/features.ts';
import { explain } from './explain.ts';
import { plan } from './place.ts';
import type { PlanOptions } from './plan.ts';

const GIB = 2 ** 30;
const adapter: AdapterFacts = { ...aCard, maxBufferBytes: 4 * GIB, maxBindingBytes: 4 * GIB };
const large = await largeModel();
const onGpu = (more: DeviceOptions): DeviceOptions => ({ context: 64, device: 'gpu', adapter, ...more });

test('splits nothing where all experts were to have a slot, or all fit: no layer then waits for the CPU', async () => {
  const glm = await familyModel('glm4moe');
  const asked = (expertCache: string, more?: DeviceOptions) => planFor(glm, onGpu({ expertCache, ...more }));
  const ample = { gpuMemoryBytes: GIB };
  for (const [all, more] of [
    ['slru:100%', {}],
    ['lfu:1000', {}],
    ['static:1GiB', {}],
    ['slru', {}],
    ['static', { gpuLayers: 3 }],
    ['lfu', ample],
    ['slru', { ...ample, gpuLayers: 3 }],
  ] as const) {
    const { experts, parts, reproducible } = asked(all, more);
    assert.deepEqual([experts, parts.length, reproducible], [undefined, 1, true], all);
  }
  assert.equal(asked('lfu:99%').parts.length, 2);
  assert.equal(asked('lfu:99%', ample).parts.length, 2);
  const large8 = { device: 'gpu', adapter, memoryBytes: 64 * GIB, gpuMemoryBytes: 8 * GIB } as const;
  const lfu = planFor(large, { ...large8, expertCache: 'lfu' }).experts;
  assert.deepEqual([lfu?.policy, lfu?.layers.length], ['lfu', 48]);
  assert.ok((lfu?.slots ?? 0) > 2000);
});

test('in little memory has the layers without all of their experts, as many as fit, and says why', () => {
  const little = (gpuMemoryBytes: number, more: DeviceOptions = {}) =>
    planFor(large, { device: 'gpu', adapter, memoryBytes: 64 * GIB, context: 512, gpuMemoryBytes, ...more });
  let before = 1;
  for (const [bytes, whole] of [
    [0.5e9, 'not one fits'],
    [0.75e9, 'only 1 layer would fit'],
  ] as const) {
    const made = little(bytes);
    const [gpu, cpu] = made.parts;
    assert.ok(gpu !== undefined && cpu !== undefined);
    assert.ok(gpu.end > before && gpu.end < 48, `${gpu.end} layers`);
    before = gpu.end;
    assert.ok(gpu.bytes.total <= bytes);
    assert.deepEqual([gpu.split?.length, cpu.experts?.length], [gpu.end, gpu.end]);
    assert.match(
      explain(made).replaceAll(/\s+/g, ' '),
      new RegExp(` layers on the GPU: as many as fit without all of their experts, since ${whole} with them: `),
    );
    // One layer more would not fit.
    assert.throws(() => little(bytes, { gpuLayers: gpu.end + 1, cpuMoe: true }), OutOfMemoryError);
  }
  // All layers with some of their experts need no excuse.
  assert.equal(little(8 * GIB).layersReason, undefined);
});

test('layers that would fit without their experts, with the flag for that', () => {
  const options = { device: 'gpu', adapter, memoryBytes: 64 * GIB, context: 512 } as const;
  const fault = (more: DeviceOptions) => {
    try {
      planFor(large, { ...options, ...more });
    } catch (error) {
      if (error instanceof OutOfMemoryError) return error.message;
    }
    return 'fits';
  };
  const tight = { gpuLayers: 3, gpuMemoryBytes: 1e9 };
  assert.match(fault(tight), /, leave experts to the CPU \(--cpu-moe\), or /);
  assert.equal(fault({ ...tight, cpuMoe: true }), 'fits');
  assert.match(fault({ ...tight, gpuMemoryBytes: 1, cpuMoe: true }), /use a shorter context, or /);
  // `auto` leaves them there by itself.
  assert.match(fault({ gpuMemoryBytes: 1 }), /does not fit on the GPU/);
});

test('of many cores leaves the more to others the fewer experts the CPU has to compute, and takes what is told', () => {
  const threads = (cores: number, options: PlanOptions) => {
    const platform = { threads: cores, freeMemoryBytes: 64 * GIB, features: detectFeatures(), adapter };
    return plan({ ...large, ignored: [], options: { device: 'gpu', gpuLayers: -1, ...options }, platform }).threads;
  };
  assert.equal(threads(16, { cpuMoe: true }), 14);
  assert.equal(threads(16, { expertCache: 'lfu:25%' }), 11);
  assert.equal(threads(16, { expertCache: 'lfu:50%' }), 8);
  assert.equal(threads(16, { expertCache: 'lfu:90%' }), 8);
  assert.equal(threads(16, { expertCache: 'lfu:50%', threads: 15 }), 15);
  assert.equal(threads(4, { expertCache: 'lfu:50%' }), 4);
});
