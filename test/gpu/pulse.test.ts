/** What keeps a device awake: it counts as long as it is told, and not once what it counts with is gone. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Pulse } from '../../src/backend/gpu/pulse.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';

after(closeGpuTestDevice);

test('a beat is a submission, of very short ones and of those behind the end there is none, and the device has no complaint', async () => {
  const gpu = await gpuTestDevice();
  const { queue } = gpu.device;
  const pulse = await Pulse.make(gpu);
  let submissions = 0;
  const submit = queue.submit.bind(queue);
  queue.submit = (buffers) => {
    submissions++;
    submit(buffers);
  };
  try {
    pulse.beat(0.001);
    assert.equal(submissions, 0);
    pulse.beat(0.01);
    assert.equal(submissions, 1);
    await queue.onSubmittedWorkDone();
    pulse.destroy();
    pulse.beat(0.01);
    assert.equal(submissions, 1);
    await queue.onSubmittedWorkDone();
    gpu.check();
  } finally {
    queue.submit = submit;
  }
});
