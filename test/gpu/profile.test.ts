/** What is measured on the device: passes by its clock, a run by kernel, the speed of its memory. */

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { measureGpuBandwidth } from '../../src/backend/gpu/bandwidth.ts';
import { Gpu } from '../../src/backend/gpu/device.ts';
import { timePasses } from '../../src/backend/gpu/timestamps.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { nastyRows } from '../conformance/support/blocks.ts';
import { ROWS, sameBits } from '../conformance/support/compare.ts';
import { rowsStep, tinyGraph } from '../conformance/support/tiny-graph.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { onGpu } from './on-gpu.ts';

after(closeGpuTestDevice);

const LEAST_REGION = 64 * 2 ** 20;

describe('timestamps', () => {
  /** counter[0] += 1 */
  const code = /* wgsl */ `
@group(0) @binding(0) var<storage, read_write> counter: array<u32>;
@compute @workgroup_size(1) fn main() { counter[0]++; }`;

  test('as many passes as one likes are each run once and timed', async () => {
    const { device } = await gpuTestDevice();
    const counter = device.createBuffer({ size: 4, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC });
    const module = device.createShaderModule({ code });
    const pipeline = await device.createComputePipelineAsync({ layout: 'auto', compute: { module } });
    const entries = [{ binding: 0, resource: { buffer: counter } }];
    const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
    // More than the timestamps of one query set.
    const passes = 2100;
    const times = await timePasses(
      device,
      Array.from({ length: passes }, () => (pass: GPUComputePassEncoder) => {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(1);
      }),
    );
    assert.equal(times?.length, passes);
    assert.ok(times?.every((ns) => Number.isSafeInteger(ns) && ns >= 0));
    assert.ok(
      times?.some((ns) => ns > 0 && ns % 65_536 !== 0),
      'all of them are rounded to 65,536 ns',
    );
    const staging = device.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(counter, 0, staging, 0, 4);
    device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    assert.equal(new Uint32Array(staging.getMappedRange())[0], passes);
  });
});

describe('a run by kernel', () => {
  const width = 20;
  const tiny = tinyGraph({
    rows: ROWS,
    inputs: { x: nastyRows(ROWS, width, 1) },
    operations: [
      { kind: 'add', layer: 0, left: 'x', right: 'x', output: 'layers.0.twice' },
      { kind: 'add', layer: 1, left: 'layers.0.twice', right: 'x', output: 'layers.1.twice' },
    ],
    widths: { 'layers.0.twice': width, 'layers.1.twice': width },
    output: 'layers.1.twice',
  });

  test('every dispatch is counted, the layers as one, and the result is that of any other run', async () => {
    await onGpu(tiny, {}, async ({ executable, run }) => {
      const step = rowsStep('step', 0, 3);
      const expected = await run(step);
      const profile = await executable.profile?.(step, 2);
      assert.ok(profile !== undefined);
      assert.equal(profile.dispatches, 3);
      assert.ok(profile.encodeMs > 0 && profile.encodeMs <= profile.runMs);
      const kernels = (profile.kernels ?? []).map(({ label, dispatches }) => [label, dispatches]);
      assert.deepEqual(kernels.sort(), [
        ['add twice', 2],
        ['embed', 1],
      ]);
      sameBits((await executable.value?.('layers.1.twice')) as Float32Array, expected, 'after a profile');
      sameBits(await run(step), expected, 'run again');
    });
  });
});

describe('bandwidth', () => {
  let clockless: Gpu;
  before(async () => {
    const gpu = (await nodePlatform.gpu()) as GPU;
    const adapter = (await gpu.requestAdapter()) as GPUAdapter;
    const features = new Set([...adapter.features].filter((feature) => feature !== 'timestamp-query'));
    const facts = { features, limits: adapter.limits, info: adapter.info };
    const requestDevice = (descriptor: GPUDeviceDescriptor) => adapter.requestDevice(descriptor);
    clockless = await Gpu.open({
      gpu: async () => ({ requestAdapter: async () => ({ ...facts, requestDevice }) }) as unknown as GPU,
    });
  });
  after(() => clockless.close());

  test('is measured by the clock of the device, or by the host’s where it has none', async () => {
    assert.equal(await timePasses(clockless.device, [() => {}]), undefined);
    for (const gpu of [await gpuTestDevice(), clockless]) {
      const found = await measureGpuBandwidth(gpu, LEAST_REGION);
      assert.equal(found?.bytes, LEAST_REGION);
      // Slower than any memory there is, and faster: a time in the wrong unit would be outside.
      assert.ok(found.bytesPerSecond > 1e6 && found.bytesPerSecond < 1e14, `${found.bytesPerSecond}`);
    }
  });

  test('is nothing where there is no room', async () => {
    assert.equal(await measureGpuBandwidth(clockless, LEAST_REGION - 1), undefined);
  });
});
