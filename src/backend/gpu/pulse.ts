/**
 * Keeps a device awake that waits for the CPU. Its driver lowers the clocks of a device that is idle most of the time (an H200's
 * to a third), and its own share then takes three times as long; one invocation that counts is work enough to keep them up.
 */

import type { Gpu } from './device.ts';

const STORAGE = 0x80;
const COPY_DST = 0x8;

/** Counts that there are: powers of two times this. */
const LEAST_COUNT = 1024;
const SIZES = 10;
/** Rounds of a millisecond when a large device runs at its full clocks. */
const COUNTS_A_MS = 200_000;

/** Of a count and of what it is made in. */
const BEAT_BYTES = 16;
/** Bytes on the device. */
export const PULSE_BYTES = SIZES * BEAT_BYTES;

interface Beat {
  readonly count: number;
  readonly group: GPUBindGroup;
}

export class Pulse {
  readonly #gpu: Gpu;
  readonly #pipeline: GPUComputePipeline;
  /** Ascending. */
  readonly #beats: readonly Beat[];
  readonly #buffers: readonly GPUBuffer[];
  #ended = false;

  private constructor(
    gpu: Gpu,
    made: {
      readonly pipeline: GPUComputePipeline;
      readonly beats: readonly Beat[];
      readonly buffers: readonly GPUBuffer[];
    },
  ) {
    this.#gpu = gpu;
    this.#pipeline = made.pipeline;
    this.#beats = made.beats;
    this.#buffers = made.buffers;
  }

  static async make(gpu: Gpu): Promise<Pulse> {
    const { device } = gpu;
    const code = /* wgsl */ `
@group(0) @binding(0) var<storage, read_write> state: array<u32, 2>;
@compute @workgroup_size(1)
fn main() {
  var x = state[0];
  let count = state[1];
  for (var i = 0u; i < count; i++) { x = x * 1664525u + 1013904223u; }
  state[0] = x;
}`;
    const module = device.createShaderModule({ code, label: 'pulse' });
    const pipeline = await device.createComputePipelineAsync({
      label: 'pulse',
      layout: 'auto',
      compute: { module, entryPoint: 'main' },
    });
    const counts = Array.from({ length: SIZES }, (_, size) => LEAST_COUNT << size);
    const buffers = counts.map((count) => {
      const buffer = device.createBuffer({ label: 'pulse', size: BEAT_BYTES, usage: STORAGE | COPY_DST });
      device.queue.writeBuffer(buffer, 0, Uint32Array.of(1, count));
      return buffer;
    });
    const beats = counts.map((count, index): Beat => {
      const resource = { buffer: buffers[index] as GPUBuffer };
      return {
        count,
        group: device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries: [{ binding: 0, resource }] }),
      };
    });
    return new Pulse(gpu, { pipeline, beats, buffers });
  }

  /**
   * Gives the device something to do for about so long at its full clocks, or less; nothing where that is very short, or after
   * {@link destroy}: who gives a run up does not wait for who is in it.
   */
  beat(ms: number): void {
    if (this.#ended) return;
    const beat = this.#beats.findLast(({ count }) => count <= ms * COUNTS_A_MS);
    if (beat === undefined) return;
    const { device } = this.#gpu;
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.#pipeline);
    pass.setBindGroup(0, beat.group);
    pass.dispatchWorkgroups(1);
    pass.end();
    device.queue.submit([encoder.finish()]);
  }

  destroy(): void {
    this.#ended = true;
    for (const buffer of this.#buffers) buffer.destroy();
  }
}
