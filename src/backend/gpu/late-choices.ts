/** Choices that a run does not stop for, brought to the host when all of it is over. */

import { MAX_STEP_ROWS } from '../kernel.ts';
import type { Binding, Choice } from './builder.ts';
import type { Gpu } from './device.ts';
import type { GpuProgram } from './layout.ts';
import { readBuffer } from './readback.ts';
import { idsOf } from './split-choice.ts';

const MAP_READ = 0x1;
const COPY_DST = 0x8;

/** What is read of a run: choices of layers that it did not stop in, and those that were foreseen. */
export interface Late {
  readonly whole: readonly Choice[];
  readonly foreseen: readonly Choice[];
}

export interface LateShape {
  readonly used: number;
  readonly experts: number;
}

export class LateChoices {
  readonly #made: { readonly gpu: Gpu; readonly bufferOf: (binding: Binding) => GPUBuffer };
  readonly #shape: LateShape;
  readonly #buffer: GPUBuffer;
  #reading: Promise<unknown> | undefined;
  #ended = false;

  /** @param bytes of the choices of a run, at the most */
  constructor(
    made: { readonly gpu: Gpu; readonly bufferOf: (binding: Binding) => GPUBuffer },
    { bytes, ...shape }: LateShape & { readonly bytes: number },
  ) {
    this.#made = made;
    this.#shape = shape;
    this.#buffer = made.gpu.device.createBuffer({
      label: 'choices of experts of a run that is over',
      size: bytes,
      usage: MAP_READ | COPY_DST,
    });
  }

  get bytes(): number {
    return this.#buffer.size;
  }

  /** Behind a run's last dispatch. */
  record(encoder: GPUCommandEncoder, choices: readonly Choice[], rows: number): void {
    let at = 0;
    for (const { route, routeWidth } of choices) {
      const source = this.#made.bufferOf({ kind: 'buffer', name: route, access: 'read' });
      const bytes = rows * routeWidth * 4;
      encoder.copyBufferToBuffer(source, 0, this.#buffer, at, bytes);
      at += bytes;
    }
  }

  /**
   * What was recorded, once it is submitted: ids [rows · used], choice by choice.
   * @throws DeviceLostError `device_lost`, DisposedError `disposed`
   */
  async read(choices: readonly Choice[], rows: number): Promise<readonly Uint32Array[]> {
    const { gpu } = this.#made;
    const bytes = lateBytes(choices, rows);
    const ended = () => this.#ended;
    const read = readBuffer(gpu, this.#buffer, { bytes, what: 'choices of experts', ended });
    this.#reading = read.mapped;
    const found = await read.bytes;
    gpu.check();
    let at = 0;
    return choices.map(({ routeWidth }) => {
      const words = new Uint32Array(found, at, rows * routeWidth);
      at += words.byteLength;
      return idsOf(words, { ...this.#shape, rows, routeWidth });
    });
  }

  destroy(): void {
    this.#ended = true;
    this.#buffer.destroy();
  }

  /** Settles when nothing is being read any more. */
  async settled(): Promise<void> {
    await this.#reading?.catch(() => {});
  }
}

/** Bytes of the choices that are read when a run is over, at the most. @param rows of a run, at the most */
export function lateBytesOf({ pauses, foreseen }: Pick<GpuProgram, 'pauses' | 'foreseen'>, rows: number): number {
  const whole = pauses.prompt.filter(({ canBeWhole }) => canBeWhole);
  return Math.max(lateBytes(whole, rows), lateBytes([...whole, ...foreseen], Math.min(rows, MAX_STEP_ROWS)));
}

/** Of so many rows. */
function lateBytes(choices: readonly Choice[], rows: number): number {
  return choices.reduce((sum, { routeWidth }) => sum + rows * routeWidth * 4, 0);
}
