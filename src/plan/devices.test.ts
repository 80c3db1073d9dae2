/** Where a model goes: what was asked for, what there is, and what cannot be meant. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { AdapterFacts } from '../backend/gpu/device.ts';
import { DeviceLostError, OutOfMemoryError, Refusal, UsageError } from '../errors.ts';
import { adapterNumber, checkDevices, gpuUse, isDevice, placementFor, reasonOf } from './devices.ts';
import type { PlanOptions } from './plan.ts';

const adapter: AdapterFacts = {
  name: 'a card',
  features: [],
  maxBufferBytes: 1e9,
  maxBindingBytes: 1e9,
  maxBindings: 16,
  workgroupBytes: 32_768,
  software: false,
};
const software = { ...adapter, name: 'SwiftShader', software: true };

test('names of devices', () => {
  for (const name of ['auto', 'cpu', 'gpu', 'gpu:0', 'gpu:17', 'reference']) assert.ok(isDevice(name), name);
  for (const name of ['', 'GPU', 'gpu:', 'gpu:-1', 'gpu:1x', 'gpu:1234', 'cpu:0', 'npu', 3, undefined, null])
    assert.ok(!isDevice(name), String(name));
  assert.equal(adapterNumber({ device: 'gpu:12' }), 12);
  assert.equal(adapterNumber({ device: 'gpu' }), undefined);
  assert.equal(adapterNumber({}), undefined);
});

const cases: readonly (readonly [PlanOptions, ReturnType<typeof gpuUse>, ReturnType<typeof placementFor>])[] = [
  [{}, 'none', { device: 'cpu', gpuLayers: 0 }],
  [{ device: 'cpu' }, 'none', { device: 'cpu', gpuLayers: 0 }],
  [{ device: 'reference' }, 'none', { device: 'reference', gpuLayers: 0 }],
  [{ device: 'gpu' }, 'asked', { device: 'gpu', gpuLayers: 'auto' }],
  [{ device: 'gpu:1' }, 'asked', { device: 'gpu', gpuLayers: 'auto' }],
  [{ device: 'auto' }, 'auto', { device: 'gpu', gpuLayers: 'auto' }],
  // Layers alone ask for a GPU; none of them for none.
  [{ gpuLayers: 3 }, 'asked', { device: 'gpu', gpuLayers: 3 }],
  [{ gpuLayers: 'auto' }, 'asked', { device: 'gpu', gpuLayers: 'auto' }],
  [{ gpuLayers: -1 }, 'asked', { device: 'gpu', gpuLayers: 'auto' }],
  [{ gpuLayers: 0 }, 'none', { device: 'cpu', gpuLayers: 0 }],
  [{ device: 'gpu', gpuLayers: 0 }, 'none', { device: 'cpu', gpuLayers: 0 }],
  [{ device: 'cpu', gpuLayers: 0 }, 'none', { device: 'cpu', gpuLayers: 0 }],
  [{ device: 'auto', gpuLayers: 2, gpuMemoryBytes: 5 }, 'auto', { device: 'gpu', gpuLayers: 2 }],
];

for (const [options, use, placement] of cases) {
  test(`${JSON.stringify(options)} on a machine with a GPU`, () => {
    assert.equal(gpuUse(options), use);
    assert.deepEqual(placementFor(options, { adapter }), placement);
  });
}

test('auto takes the CPU where there is no GPU, only a software one, or one that has failed, and says why', () => {
  const reason = (facts: Parameters<typeof placementFor>[1]) => {
    const { device, gpuLayers, reason: why } = placementFor({ device: 'auto' }, facts);
    assert.deepEqual([device, gpuLayers], ['cpu', 0]);
    return why;
  };
  assert.equal(reason({}), 'no GPU was found');
  assert.equal(reason({ adapter: software }), 'the only GPU found is software (SwiftShader)');
  assert.equal(reason({ adapter, noGpu: 'the GPU was lost' }), 'the GPU was lost');
});

test('who asks for a GPU gets one, software too', () => {
  assert.deepEqual(placementFor({ device: 'gpu' }, { adapter: software }), { device: 'gpu', gpuLayers: 'auto' });
});

test('options that contradict each other are refused by name', () => {
  const refused: readonly (readonly [PlanOptions, RegExp])[] = [
    [{ device: 'cpu', gpuLayers: 3 }, /gpuLayers \(-g\) puts 3 layers on a GPU, and device \(--device\) is cpu/],
    [{ device: 'cpu', gpuLayers: 'auto' }, /gpuLayers \(-g\) puts layers on a GPU, and device \(--device\) is cpu/],
    [{ device: 'reference', gpuLayers: -1 }, /is reference; leave one of them out/],
    [{ gpuMemoryBytes: 5 }, /gpuMemoryBytes \(--gpu-memory\) is of use only where layers run on a GPU/],
    [{ gpuChecks: true }, /gpuChecks \(--gpu-checks\) is of use only where layers run on a GPU/],
    [{ device: 'cpu', gpuMemoryBytes: 5 }, /--gpu-memory/],
    [{ device: 'gpu', gpuLayers: 0, gpuMemoryBytes: 5 }, /\(--gpu-memory\) .*, and gpuLayers \(-g\) is 0; leave one/],
  ];
  for (const [options, message] of refused) {
    assert.throws(
      () => checkDevices(options),
      (error) => error instanceof UsageError && message.test(error.message),
      JSON.stringify(options),
    );
    assert.throws(() => placementFor(options, { adapter }), UsageError);
  }
});

test('a reason is what happened, without what follows from it', () => {
  const reasons: readonly (readonly [Error, string])[] = [
    [
      new Refusal('no gpu kernel serves head (prompt; head X [1, 2]); tried:', {
        reasons: [{ row: 'a', reason: 'b' }],
      }),
      'no gpu kernel serves head (prompt; head X [1, 2])',
    ],
    [new Refusal('no GPU was found: check its driver, or use --device cpu'), 'no GPU was found: check its driver'],
    [
      new OutOfMemoryError(
        'head takes 2 GB, and this GPU binds at most 1 GB; ask for a shorter context or use --device cpu',
      ),
      'head takes 2 GB, and this GPU binds at most 1 GB',
    ],
    [new DeviceLostError('the GPU was lost'), 'the GPU was lost'],
  ];
  for (const [error, reason] of reasons) assert.equal(reasonOf(error), reason);
});
