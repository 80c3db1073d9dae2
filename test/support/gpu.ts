/**
 * The GPU that tests run on: the machine's driver as `VK_DRIVER_FILES` names it, else SwiftShader as Debian's `chromium`
 * package brings it. A missing device fails the test that asks.
 */

import { existsSync } from 'node:fs';
import { Gpu } from '../../src/backend/gpu/device.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { poisoned } from './poisoned.ts';

const SWIFTSHADER = '/usr/lib/chromium/vk_swiftshader_icd.json';

// The Vulkan loader reads it when Dawn opens the first adapter.
if (process.env.VK_DRIVER_FILES === undefined && existsSync(SWIFTSHADER)) process.env.VK_DRIVER_FILES = SWIFTSHADER;

const opened = new Map<boolean, Promise<Gpu>>();

/**
 * The device, the same one for all who ask, with workgroup memory full of poison. Call `closeGpuTestDevice` in `after`, or the
 * process stays.
 * @param unchecked without the driver's own checks
 */
export function gpuTestDevice(unchecked = false): Promise<Gpu> {
  let gpu = opened.get(unchecked);
  if (gpu === undefined) {
    gpu = Gpu.open(nodePlatform, { unchecked }).then(poisoned);
    opened.set(unchecked, gpu);
  }
  return gpu;
}

export async function closeGpuTestDevice(): Promise<void> {
  const all = await Promise.all(opened.values());
  opened.clear();
  for (const gpu of all) gpu.close();
}

/** What stands at @group(0) @binding(i): bytes to read, or how many to write. */
export type TestBinding = { readonly read: ArrayBufferView<ArrayBuffer> } | { readonly write: number };

/**
 * Runs one dispatch of `code` (entry point `main`) and returns what it wrote, a copy a `write` binding, in order. What a
 * kernel may have from the device is checked: errors of validation are thrown.
 */
export async function runOnGpu(
  code: string,
  bindings: readonly TestBinding[],
  workgroups: readonly [number, number, number],
): Promise<ArrayBuffer[]> {
  const gpu = await gpuTestDevice();
  const { device } = gpu;
  return gpu.guarded(async () => {
    const pipeline = await device.createComputePipelineAsync({
      layout: 'auto',
      compute: { module: device.createShaderModule({ code }), entryPoint: 'main' },
    });
    const buffers = bindings.map((binding) => {
      const bytes = 'read' in binding ? binding.read.byteLength : binding.write;
      const buffer = device.createBuffer({
        size: Math.max(16, Math.ceil(bytes / 16) * 16),
        usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC,
      });
      if ('read' in binding) {
        const { read } = binding;
        device.queue.writeBuffer(buffer, 0, read.buffer, read.byteOffset, read.byteLength);
      }
      return buffer;
    });
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(
      0,
      device.createBindGroup({
        layout: pipeline.getBindGroupLayout(0),
        entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
      }),
    );
    pass.dispatchWorkgroups(...workgroups);
    pass.end();
    const results = bindings.flatMap((binding, index) => {
      if ('read' in binding) return [];
      const staging = device.createBuffer({
        size: Math.ceil(binding.write / 4) * 4,
        usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
      });
      encoder.copyBufferToBuffer(buffers[index] as GPUBuffer, 0, staging, 0, staging.size);
      return [{ staging, bytes: binding.write }];
    });
    device.queue.submit([encoder.finish()]);
    const copies: ArrayBuffer[] = [];
    for (const { staging, bytes } of results) {
      await staging.mapAsync(GPUMapMode.READ);
      copies.push(staging.getMappedRange().slice(0, bytes));
      staging.destroy();
    }
    for (const buffer of buffers) buffer.destroy();
    return copies;
  });
}
