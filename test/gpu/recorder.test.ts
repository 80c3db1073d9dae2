import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import type { Binding, Dispatch } from '../../src/backend/gpu/builder.ts';
import { Gpu } from '../../src/backend/gpu/device.ts';
import { Recorder } from '../../src/backend/gpu/recorder.ts';
import { DeviceLostError, InternalError, Refusal } from '../../src/errors.ts';
import { nodePlatform } from '../../src/platform/node.ts';

const STORAGE = 0x80;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const MAP_READ = 0x1;

/** out[i] = in[i] · 2 + 1 */
const code = /* wgsl */ `
@group(0) @binding(0) var<storage, read> source: array<f32>;
@group(0) @binding(1) var<storage, read_write> target_: array<f32>;
@compute @workgroup_size(4) fn main(@builtin(global_invocation_id) id: vec3u) {
  target_[id.x] = source[id.x] * 2.0 + 1.0;
}`;

describe('the recorder', () => {
  let gpu: Gpu;
  before(async () => {
    gpu = await Gpu.open(nodePlatform);
  });
  after(() => gpu.close());

  function buffersOf(device: GPUDevice, names: readonly string[]): Map<string, GPUBuffer> {
    return new Map(
      names.map((name) => [name, device.createBuffer({ size: 16, usage: STORAGE | COPY_SRC | COPY_DST })]),
    );
  }

  async function read(
    device: GPUDevice,
    buffer: GPUBuffer,
    encoder = device.createCommandEncoder(),
  ): Promise<number[]> {
    const staging = device.createBuffer({ size: 16, usage: MAP_READ | COPY_DST });
    encoder.copyBufferToBuffer(buffer, 0, staging, 0, 16);
    device.queue.submit([encoder.finish()]);
    await staging.mapAsync(MAP_READ);
    return [...new Float32Array(staging.getMappedRange().slice(0))];
  }

  const value = (name: string, access: 'read' | 'write'): Binding => ({ kind: 'value', name, access });
  const dispatch = (from: string, to: string): Dispatch => ({
    label: `${from} to ${to}`,
    code,
    bindings: [value(from, 'read'), value(to, 'write')],
    workgroups: ({ rows }) => [rows, 1, 1],
  });

  test('24 dispatches of one pipeline with different buffers in one submission give 24 right results', async () => {
    const { device } = gpu;
    const names = Array.from({ length: 24 }, (_, index) => [`in ${index}`, `out ${index}`]).flat();
    const buffers = buffersOf(device, names);
    const step = Array.from({ length: 24 }, (_, index) => dispatch(`in ${index}`, `out ${index}`));
    const recorder = await Recorder.make(
      gpu,
      { prompt: [], step },
      (binding) => buffers.get((binding as { name: string }).name) as GPUBuffer,
    );
    for (let index = 0; index < 24; index++) {
      device.queue.writeBuffer(
        buffers.get(`in ${index}`) as GPUBuffer,
        0,
        new Float32Array([index, 100 + index, -index, 0.5]),
      );
    }
    const encoder = device.createCommandEncoder();
    recorder.record(encoder, 'step', { rows: 1, wanted: 0, visible: 1 });
    device.queue.submit([encoder.finish()]);
    for (let index = 0; index < 24; index++) {
      assert.deepEqual(await read(device, buffers.get(`out ${index}`) as GPUBuffer), [
        2 * index + 1,
        201 + 2 * index,
        1 - 2 * index,
        2,
      ]);
    }
  });

  test('each dispatch sees what those before it wrote', async () => {
    const { device } = gpu;
    const chain = Array.from({ length: 10 }, (_, index) => dispatch(`v${index}`, `v${index + 1}`));
    const buffers = buffersOf(
      device,
      Array.from({ length: 11 }, (_, index) => `v${index}`),
    );
    const recorder = await Recorder.make(
      gpu,
      { prompt: chain, step: [] },
      (binding) => buffers.get((binding as { name: string }).name) as GPUBuffer,
    );
    const encoder = device.createCommandEncoder();
    recorder.record(encoder, 'prompt', { rows: 1, wanted: 0, visible: 1 });
    assert.equal(recorder.dispatches, 10);
    assert.deepEqual(await read(device, buffers.get('v10') as GPUBuffer, encoder), [1023, 1023, 1023, 1023]);
  });

  test('a dispatch without workgroups is left out', async () => {
    const { device } = gpu;
    const buffers = buffersOf(device, ['a', 'b']);
    const recorder = await Recorder.make(
      gpu,
      { prompt: [], step: [dispatch('a', 'b')] },
      (binding) => buffers.get((binding as { name: string }).name) as GPUBuffer,
    );
    const encoder = device.createCommandEncoder();
    recorder.record(encoder, 'step', { rows: 0, wanted: 0, visible: 0 });
    assert.equal(recorder.dispatches, 0);
    assert.deepEqual(await read(device, buffers.get('b') as GPUBuffer, encoder), [0, 0, 0, 0]);
  });

  test('a kernel that does not compile is named', async () => {
    const broken: Dispatch = { ...dispatch('a', 'b'), label: 'the broken one', code: 'fn main() { return 1; }' };
    const buffers = buffersOf(gpu.device, ['a', 'b']);
    await assert.rejects(
      Recorder.make(
        gpu,
        { prompt: [], step: [broken] },
        (binding) => buffers.get((binding as { name: string }).name) as GPUBuffer,
      ),
      (error: unknown) => error instanceof InternalError && /the broken one/.test(error.message),
    );
  });
});

describe('a device', () => {
  test('that is lost says so at the next check', async () => {
    const gpu = await Gpu.open(nodePlatform);
    gpu.check();
    gpu.device.destroy();
    await gpu.device.lost;
    await Promise.resolve();
    assert.throws(
      () => gpu.check(),
      (error: unknown) => error instanceof DeviceLostError && error.code === 'device_lost',
    );
  });

  test('that is closed on purpose is no error', async () => {
    const gpu = await Gpu.open(nodePlatform);
    gpu.close();
    await gpu.device.lost;
    await Promise.resolve();
    gpu.check();
  });

  test('is refused by name where there is no WebGPU and where there is no adapter', async () => {
    await assert.rejects(
      Gpu.open({ gpu: async () => undefined }),
      (error: unknown) => error instanceof Refusal && /no WebGPU.*webgpu.*--device cpu/.test(error.message),
    );
    const none = { requestAdapter: async () => null } as unknown as GPU;
    await assert.rejects(
      Gpu.open({ gpu: async () => none }),
      (error: unknown) => error instanceof Refusal && /no GPU was found/.test(error.message),
    );
  });
});
