/** Measures how fast the device reads its own memory: what decoding could reach at the most. */

import { OutOfMemoryError } from '../../errors.ts';
import type { DeviceBandwidth } from '../backend.ts';
import type { Gpu } from './device.ts';
import { timePasses } from './timestamps.ts';

const STORAGE = 0x80;
const THREADS = 256;
const WORKGROUPS = 2048;
const UNROLLED = 4;
const VEC4_BYTES = 16;
const PASSES = 8;

/** Bytes that all threads read in one turn of the loop. */
const TURN_BYTES = VEC4_BYTES * THREADS * WORKGROUPS * UNROLLED;
const LEAST_BYTES = 2 * TURN_BYTES;
/** Twenty times the last cache of today's largest devices. */
const MOST_BYTES = 2 ** 30;
/** What is measured with, beside the region, at the most. */
export const BESIDE_REGION_BYTES = 2 ** 12;
/** A pass that takes this long is not helped by caches, nor hurt by what starting it costs. */
const ENOUGH_NS = 2e6;

const code = (bytes: number) => /* wgsl */ `
@group(0) @binding(0) var<storage, read> memory: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> sink: array<u32>;
const ALL = ${THREADS * WORKGROUPS}u;
@compute @workgroup_size(${THREADS}) fn main(@builtin(global_invocation_id) id: vec3u) {
  var a = vec4u();
  var b = vec4u();
  var c = vec4u();
  var d = vec4u();
  for (var i = id.x; i < ${bytes / VEC4_BYTES}u; i += ${UNROLLED}u * ALL) {
    a |= memory[i];
    b |= memory[i + ALL];
    c |= memory[i + 2u * ALL];
    d |= memory[i + 3u * ALL];
  }
  // Never so, since the memory holds zeros; but no read can be left out.
  if (any((a | b | c | d) != vec4u())) { sink[0] = id.x; }
}`;

/**
 * Reads a region of 64 MiB to 1 GiB, as much as the device gives and as its speed asks for, eight times with 128-bit
 * loads from all its threads; the best pass counts.
 * @param mostBytes of the region
 * @returns undefined where not even the least region can be had, or no time was measured
 */
export async function measureGpuBandwidth(
  gpu: Gpu,
  mostBytes = Number.POSITIVE_INFINITY,
): Promise<DeviceBandwidth | undefined> {
  const { maxBufferSize, maxStorageBufferBindingSize } = gpu.device.limits;
  const limit = Math.min(mostBytes, MOST_BYTES, maxBufferSize, maxStorageBufferBindingSize);
  let found: DeviceBandwidth | undefined;
  for (let bytes = LEAST_BYTES; bytes <= limit; bytes *= 4) {
    let ns: number;
    try {
      ns = await bestPass(gpu, bytes);
    } catch (error) {
      if (error instanceof OutOfMemoryError) break;
      throw error;
    }
    if (ns > 0) found = { bytesPerSecond: bytes / (ns / 1e9), bytes };
    if (ns >= ENOUGH_NS) break;
  }
  return found;
}

/** Nanoseconds of the shortest of some passes over `bytes`. */
async function bestPass(gpu: Gpu, bytes: number): Promise<number> {
  const { device } = gpu;
  const made: GPUBuffer[] = [];
  try {
    const { pipeline, group } = await gpu.guarded(async () => {
      const buffer = (label: string, size: number) => {
        const one = device.createBuffer({ label, size, usage: STORAGE });
        made.push(one);
        return one;
      };
      const pipeline = await device.createComputePipelineAsync({
        layout: 'auto',
        compute: { module: device.createShaderModule({ code: code(bytes) }), entryPoint: 'main' },
      });
      const resources = [buffer('memory to read', bytes), buffer('sink', 4)];
      const entries = resources.map((each, binding) => ({ binding, resource: { buffer: each } }));
      return { pipeline, group: device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }) };
    });
    const read = (pass: GPUComputePassEncoder) => {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(WORKGROUPS);
    };
    const passes = Array.from({ length: PASSES }, () => read);
    const times = (await timePasses(device, passes)) ?? (await timeByHost(device, passes));
    gpu.check();
    return Math.min(...times);
  } finally {
    for (const buffer of made) buffer.destroy();
  }
}

/** Where the device has no clock: all passes in one submission, which each take their share of it; the first warms up. */
async function timeByHost(
  device: GPUDevice,
  passes: readonly ((pass: GPUComputePassEncoder) => void)[],
): Promise<number[]> {
  const submit = async (some: typeof passes) => {
    const encoder = device.createCommandEncoder();
    for (const fill of some) {
      const pass = encoder.beginComputePass();
      fill(pass);
      pass.end();
    }
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
  };
  await submit(passes.slice(0, 1));
  const startMs = performance.now();
  await submit(passes);
  return [((performance.now() - startMs) * 1e6) / passes.length];
}
