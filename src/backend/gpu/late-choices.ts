/** What layers have chosen that a run did not stop for, brought to the host when all of the run is over. */

import type { Binding, Pause } from './builder.ts';
import type { Gpu } from './device.ts';
import { readBuffer } from './readback.ts';
import { idsOf } from './split-choice.ts';

const MAP_READ = 0x1;
const COPY_DST = 0x8;

export interface LateShape {
  /** Most rows of a run. */
  readonly rows: number;
  readonly used: number;
  readonly experts: number;
}

export class LateChoices {
  readonly #made: { readonly gpu: Gpu; readonly bufferOf: (binding: Binding) => GPUBuffer };
  readonly #shape: LateShape;
  readonly #buffer: GPUBuffer;
  #reading: Promise<unknown> | undefined;
  #ended = false;

  /** @param pauses those of all layers that a run may not stop in */
  constructor(
    made: { readonly gpu: Gpu; readonly bufferOf: (binding: Binding) => GPUBuffer },
    { pauses, ...shape }: LateShape & { readonly pauses: readonly Pause[] },
  ) {
    this.#made = made;
    this.#shape = shape;
    this.#buffer = made.gpu.device.createBuffer({
      label: 'choices of experts in a run without stops',
      size: lateBytes(pauses, shape.rows),
      usage: MAP_READ | COPY_DST,
    });
  }

  get bytes(): number {
    return this.#buffer.size;
  }

  /** Behind a run's last dispatch. */
  record(encoder: GPUCommandEncoder, pauses: readonly Pause[], rows: number): void {
    let at = 0;
    for (const { route, routeWidth } of pauses) {
      const source = this.#made.bufferOf({ kind: 'buffer', name: route, access: 'read' });
      const bytes = rows * routeWidth * 4;
      encoder.copyBufferToBuffer(source, 0, this.#buffer, at, bytes);
      at += bytes;
    }
  }

  /**
   * What was recorded, once it is submitted: ids [rows · used] by layer.
   * @throws DeviceLostError `device_lost`, DisposedError `disposed`
   */
  async read(pauses: readonly Pause[], rows: number): Promise<ReadonlyMap<number, Uint32Array>> {
    const { gpu } = this.#made;
    const bytes = lateBytes(pauses, rows);
    const ended = () => this.#ended;
    const read = readBuffer(gpu, this.#buffer, { bytes, what: 'choices of experts', ended });
    this.#reading = read.mapped;
    const found = await read.bytes;
    gpu.check();
    let at = 0;
    return new Map(
      pauses.map(({ layer, routeWidth }) => {
        const words = new Uint32Array(found, at, rows * routeWidth);
        at += words.byteLength;
        return [layer, idsOf(words, { ...this.#shape, rows, routeWidth })];
      }),
    );
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

function lateBytes(pauses: readonly Pause[], rows: number): number {
  return pauses.reduce((sum, { routeWidth }) => sum + rows * routeWidth * 4, 0);
}
