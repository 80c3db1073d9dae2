/**
 * Draws tokens on the device. The host writes how each row is drawn before the submission that reads it, and reads the
 * tokens through small buffers of their own, one for each run on its way: never logits.
 */

import { type ConclaveError, InternalError } from '../../errors.ts';
import type { Draw, Drawer, Drawn, Step } from '../backend.ts';
import type { SamplerSettings } from '../sampling.ts';
import type { RunShape } from './builder.ts';
import type { Gpu } from './device.ts';
import type { SamplingBuffers } from './device-buffers.ts';
import { readBuffer } from './readback.ts';
import {
  drawFault,
  drawShape,
  needsSlot,
  type SamplingLayout,
  samplesOnDevice,
  writeDraws,
  writeSlot,
} from './sampling-buffer.ts';

const MAP_READ = 0x1;
const COPY_DST = 0x8;

export interface GpuDrawerOptions {
  readonly gpu: Gpu;
  readonly layout: SamplingLayout;
  readonly buffers: SamplingBuffers;
  /** A checked step with its draws, as commands that are not submitted yet. */
  encode(step: Step, draws: Pick<RunShape, 'drawn' | 'adjusts'>): GPUCommandEncoder;
}

export class GpuDrawer implements Drawer {
  readonly #options: GpuDrawerOptions;
  readonly #words: Uint32Array<ArrayBuffer>;
  /** Every buffer that tokens are read through, and those of them that no run is using. */
  readonly #readbacks: GPUBuffer[] = [];
  readonly #free: GPUBuffer[] = [];
  /** Reads that wait for the device. */
  readonly #reading = new Set<Promise<unknown>>();
  #disposed = false;

  constructor(options: GpuDrawerOptions) {
    this.#options = options;
    this.#words = new Uint32Array(options.layout.settingsWords);
  }

  get slots(): number {
    return this.#options.layout.slots;
  }

  /** Buffers that tokens are read through: as many as runs have been on their way at once. */
  get readbacks(): number {
    return this.#readbacks.length;
  }

  takes(settings: SamplerSettings): true | string {
    return samplesOnDevice(settings, this.#options.layout);
  }

  begin(slot: number, settings: SamplerSettings, tokens: ArrayLike<number>): void {
    if (!needsSlot(settings)) return;
    const { gpu, layout, buffers } = this.#options;
    const words = writeSlot(settings, tokens, layout);
    gpu.device.queue.writeBuffer(buffers.slots, slot * layout.slotWords * 4, words);
  }

  async draw(step: Step, draws: readonly Draw[]): Promise<Drawn> {
    const { gpu, layout, buffers, encode } = this.#options;
    const { queue } = gpu.device;
    if (draws.length !== step.wanted.length) {
      throw new InternalError(`${draws.length} tokens are to be drawn from ${step.wanted.length} rows of logits`);
    }
    const placed = draws.map((draw) => ({ ...draw, place: draw.slot }));
    const encoder = encode(step, drawShape(placed));
    queue.writeBuffer(buffers.settings, 0, this.#words, 0, writeDraws(placed, layout, this.#words));
    const readback = this.#free.pop() ?? this.#makeReadback();
    encoder.copyBufferToBuffer(buffers.drawn, 0, readback, 0, readback.size);
    queue.submit([encoder.finish()]);
    const words = await this.#read(readback);
    gpu.check();
    return draws.map(({ slot }): number | ConclaveError => {
      const fault = drawFault(words[layout.places + slot] as number);
      return fault ?? (words[slot] as number);
    });
  }

  #makeReadback(): GPUBuffer {
    const { gpu, layout } = this.#options;
    const size = layout.drawnWords * 4;
    const made = gpu.device.createBuffer({ label: 'drawn tokens on the host', size, usage: MAP_READ | COPY_DST });
    this.#readbacks.push(made);
    return made;
  }

  async #read(readback: GPUBuffer): Promise<Uint32Array> {
    const { mapped, bytes } = readBuffer(this.#options.gpu, readback, {
      bytes: readback.size,
      what: 'tokens',
      ended: () => this.#disposed,
    });
    this.#reading.add(mapped);
    try {
      const words = new Uint32Array(await bytes);
      this.#free.push(readback);
      return words;
    } finally {
      this.#reading.delete(mapped);
    }
  }

  /** Gives up what is on its way: those draws fail. Settles when they have. */
  async dispose(): Promise<void> {
    this.#disposed = true;
    for (const readback of this.#readbacks) readback.destroy();
    await Promise.allSettled(this.#reading);
  }
}
