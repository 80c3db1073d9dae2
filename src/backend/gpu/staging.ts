/**
 * A buffer that the host fills while it is mapped, and the device empties; loads take turns with it. Its memory is reached by
 * {@link Staging.write} alone, which counts those who write; while there are any it is neither unmapped nor given up, whatever
 * fails: other threads may be writing there, and memory that is not there any more would end the process.
 */

import { DeviceLostError, DisposedError, InternalError } from '../../errors.ts';
import type { Gpu } from './device.ts';

const MAP_WRITE = 0x2;
const COPY_SRC = 0x4;

export class Staging {
  readonly #gpu: Gpu;
  readonly #buffer: GPUBuffer;
  /** Until it is mapped again. */
  #mapping: Promise<void> | undefined;
  /** Its memory, once asked for: it can be had once a mapping. */
  #memory: Uint8Array | undefined;
  #writers = 0;
  /** Resolved when the last of the writers is done. */
  #quiet: PromiseWithResolvers<void> | undefined;
  #turn = 0;
  #ended = false;

  /** @throws RangeError or what else the runtime says where there is no memory to map */
  constructor(gpu: Gpu, { label, bytes }: { readonly label: string; readonly bytes: number }) {
    this.#gpu = gpu;
    this.#buffer = gpu.device.createBuffer({
      label,
      size: bytes,
      usage: MAP_WRITE | COPY_SRC,
      mappedAtCreation: true,
    });
  }

  get bytes(): number {
    return this.#buffer.size;
  }

  /** Whether it can be written to, and nobody else does. */
  get idle(): boolean {
    return this.#mapping === undefined && this.#writers === 0 && !this.#ended;
  }

  /** Begins a turn: whoever had the one before cannot write or send any more. What it is writing is waited for. */
  take(): number {
    return ++this.#turn;
  }

  /** @throws DisposedError `disposed`; DeviceLostError `device_lost` when the device does not give it back */
  async untilIdle(): Promise<void> {
    while (!this.idle) {
      if (this.#ended) throw new DisposedError('the GPU backend');
      await (this.#quiet?.promise ?? this.#mapping);
    }
    this.#gpu.check();
  }

  /**
   * Has `put` fill a range. It may go on after it has returned, until what it returned has settled.
   * @returns the same, or nothing where `put` returned nothing
   * @throws DeviceLostError `device_lost`
   */
  write(
    { turn, at, bytes }: { readonly turn: number; readonly at: number; readonly bytes: number },
    put: (memory: Uint8Array) => void | Promise<void>,
  ): void | Promise<void> {
    if (this.#mapping !== undefined || this.#ended || turn !== this.#turn) {
      throw new InternalError('memory for experts on their way was written to out of turn, or while it was not mapped');
    }
    this.#memory ??= this.#range();
    const written = put(this.#memory.subarray(at, at + bytes));
    return written === undefined ? undefined : this.#count(written);
  }

  #range(): Uint8Array {
    try {
      return new Uint8Array(this.#buffer.getMappedRange());
    } catch (cause) {
      // A lost device takes its memory with it, whether it has said so already or not.
      this.#gpu.check();
      throw new DeviceLostError('the GPU took its memory back; load the model again, or use --device cpu', { cause });
    }
  }

  async #count(written: Promise<void>): Promise<void> {
    this.#writers++;
    this.#quiet ??= Promise.withResolvers();
    try {
      await written;
    } finally {
      if (--this.#writers === 0) {
        this.#quiet.resolve();
        this.#quiet = undefined;
        if (this.#ended) this.#buffer.destroy();
      }
    }
  }

  /** Gives the memory to the device for the commands that `submit` submits, and then back to the host. */
  send(turn: number, submit: (buffer: GPUBuffer) => void): void {
    if (!this.idle || turn !== this.#turn) {
      throw new InternalError('experts were sent on their way out of turn, or while they were being written');
    }
    this.#memory = undefined;
    this.#buffer.unmap();
    try {
      submit(this.#buffer);
    } finally {
      this.#mapping = this.#map();
      // Heard by whoever waits for it, if anybody does.
      this.#mapping.catch(() => {});
    }
  }

  async #map(): Promise<void> {
    try {
      await this.#buffer.mapAsync(MAP_WRITE);
    } catch (cause) {
      if (this.#ended) throw new DisposedError('the GPU backend');
      this.#gpu.check();
      throw new DeviceLostError('the GPU gave no memory back; load the model again, or use --device cpu', { cause });
    }
    this.#mapping = undefined;
  }

  /** Gives it up: at once, or as soon as nobody writes to it. */
  destroy(): void {
    if (this.#ended) return;
    this.#ended = true;
    if (this.#writers === 0) this.#buffer.destroy();
  }

  /** Settles when nobody writes, and no mapping is waited for. */
  async settled(): Promise<void> {
    await this.#quiet?.promise;
    await this.#mapping?.catch(() => {});
  }
}
