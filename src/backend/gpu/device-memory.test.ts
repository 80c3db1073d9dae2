import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DeviceMemory } from './device-memory.ts';

/** A device that makes buffers of a size, or fails. */
function fakeDevice() {
  const destroyed: number[] = [];
  const device = {
    createBuffer({ size }: { readonly size: number }) {
      if (size > 1000) throw new RangeError('no memory to map');
      return { size, destroy: () => void destroyed.push(size) };
    },
  } as unknown as GPUDevice;
  return { device, destroyed };
}

test('buffers count from when they are made until they are destroyed, once, and the most stays', () => {
  const { device, destroyed } = fakeDevice();
  const memory = new DeviceMemory(device);
  const make = (size: number) => device.createBuffer({ size, usage: 0 });
  assert.deepEqual([memory.bytes, memory.peakBytes], [0, 0]);
  const [first, second] = [make(100), make(300)];
  assert.deepEqual([memory.bytes, memory.peakBytes], [400, 400]);
  first.destroy();
  first.destroy();
  assert.deepEqual([memory.bytes, memory.peakBytes], [300, 400]);
  assert.throws(() => make(2000), RangeError);
  make(50);
  second.destroy();
  assert.deepEqual([memory.bytes, memory.peakBytes], [50, 400]);
  // The device hears of all of it.
  assert.deepEqual(destroyed, [100, 100, 300]);
});
