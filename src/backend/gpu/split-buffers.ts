/**
 * What the host writes for split layers, always by the queue and so in order with what is submitted: which slot each expert is in,
 * and what the CPU has computed.
 */

import type { GivenRouting } from '../backend.ts';
import { ABSENT, type Binding, type Choice, HOST_MADE, HOST_PLACES } from './builder.ts';
import type { Gpu } from './device.ts';
import type { Residency } from './residency.ts';

const COPY_SRC = 0x4;
const COPY_DST = 0x8;

interface Buffers {
  readonly gpu: Gpu;
  readonly bufferOf: (binding: Binding) => GPUBuffer;
}

/** The tables of slots, a layer each. */
export class SlotTables {
  readonly #buffers: Buffers;
  readonly #experts: number;
  readonly #residency: Residency;

  constructor(buffers: Buffers, { experts, residency }: { readonly experts: number; readonly residency: Residency }) {
    this.#buffers = buffers;
    this.#experts = experts;
    this.#residency = residency;
  }

  /** Tells the device what has changed. Not while a run is under way. */
  writeChanged(): void {
    for (const layer of this.#residency.changed()) this.write(layer);
  }

  /** A layer's as the residency says. */
  write(layer: number): void {
    const table = new Uint32Array(this.#experts);
    for (let expert = 0; expert < this.#experts; expert++) {
      table[expert] = this.#residency.slotOf(layer, expert) ?? ABSENT;
    }
    this.#queue(layer, table);
  }

  /** A layer's with these experts and no others. */
  writeOnly(layer: number, placings: readonly { readonly expert: number; readonly slot: number }[]): void {
    const table = new Uint32Array(this.#experts).fill(ABSENT);
    for (const { expert, slot } of placings) table[expert] = slot;
    this.#queue(layer, table);
  }

  #queue(layer: number, table: Uint32Array<ArrayBuffer>): void {
    const { gpu, bufferOf } = this.#buffers;
    gpu.device.queue.writeBuffer(bufferOf({ kind: 'slots', layer }), 0, table);
  }
}

/** What the CPU has computed of a layer's run, and for each (row, rank) pair where it stands. */
export class HostResults {
  /** [rows · used] By pair: 1 + the result that is the CPU's, or 0. */
  readonly #places: Uint32Array<ArrayBuffer>;
  readonly #buffers: Buffers;
  readonly #shape: { readonly hidden: number; readonly used: number };
  /** Rows from the first on whose places on the device may name results. */
  #placedRows = 0;

  constructor(buffers: Buffers, shape: { readonly rows: number; readonly hidden: number; readonly used: number }) {
    this.#buffers = buffers;
    this.#shape = shape;
    this.#places = new Uint32Array(shape.rows * shape.used);
  }

  /** [rows · used] The places of a run's pairs, all 0, for who asks the CPU to write to. */
  begin(rows: number): Uint32Array {
    return this.#places.subarray(0, rows * this.#shape.used).fill(0);
  }

  /** @param made [pairs, hidden]; of a run of `rows` rows, whose places stand in what {@link begin} gave */
  write(made: Float32Array, { pairs, rows }: { readonly pairs: number; readonly rows: number }): void {
    const { queue } = this.#buffers.gpu.device;
    queue.writeBuffer(this.#buffer(HOST_MADE), 0, made as Float32Array<ArrayBuffer>, 0, pairs * this.#shape.hidden);
    queue.writeBuffer(this.#buffer(HOST_PLACES), 0, this.#places, 0, rows * this.#shape.used);
    this.#placedRows = Math.max(this.#placedRows, rows);
  }

  /** From here on in the queue nothing is the CPU's. */
  clear(): void {
    if (this.#placedRows === 0) return;
    const places = this.begin(this.#placedRows);
    this.#buffers.gpu.device.queue.writeBuffer(this.#buffer(HOST_PLACES), 0, places as Uint32Array<ArrayBuffer>);
    this.#placedRows = 0;
  }

  /** The same from here on in commands, of a run of so many rows. */
  recordClear(encoder: GPUCommandEncoder, rows: number): void {
    encoder.clearBuffer(this.#buffer(HOST_PLACES), 0, rows * this.#shape.used * 4);
  }

  #buffer(name: string): GPUBuffer {
    return this.#buffers.bufferOf({ kind: 'buffer', name, access: 'read' });
  }
}

/** Choices that are given, for measurements, on their way to where the router's stand. */
export class GivenChoices {
  readonly #buffers: Buffers;
  readonly #routing: GivenRouting;
  readonly #used: number;
  /** Bytes of a layer's choice, at the most. */
  readonly #layerBytes: number;
  readonly #buffer: GPUBuffer;

  /**
   * @param shape.width words of a row's choice, at the most
   * @param shape.layers whose choices are on their way at once, at the most
   */
  constructor(
    buffers: Buffers,
    routing: GivenRouting,
    shape: { readonly rows: number; readonly used: number; readonly width: number; readonly layers: number },
  ) {
    this.#buffers = buffers;
    this.#routing = routing;
    this.#used = shape.used;
    this.#layerBytes = shape.rows * shape.width * 4;
    this.#buffer = buffers.gpu.device.createBuffer({
      label: 'given choices',
      size: shape.layers * this.#layerBytes,
      usage: COPY_SRC | COPY_DST,
    });
  }

  /** Writes a layer's of so many rows, before the submission that copies them; all experts of a row weigh the same. */
  write({ layer, routeWidth }: Choice, { rows, place = 0 }: { readonly rows: number; readonly place?: number }): void {
    const used = this.#used;
    const ids = this.ids(layer);
    const words = new Uint32Array(rows * routeWidth);
    const weights = new Float32Array(words.buffer);
    for (let row = 0; row < rows; row++) {
      const at = row * routeWidth;
      words.set(ids.subarray(row * used, (row + 1) * used), at);
      weights.fill(1 / used, at + used, at + 2 * used);
      weights[at + 2 * used] = 1;
    }
    this.#buffers.gpu.device.queue.writeBuffer(this.#buffer, place * this.#layerBytes, words);
  }

  /** [rows · used] */
  ids(layer: number): Uint32Array {
    return this.#routing.ids(layer);
  }

  /** Over what the router chose. */
  copyTo(
    encoder: GPUCommandEncoder,
    { route, routeWidth }: Choice,
    { rows, place = 0 }: { readonly rows: number; readonly place?: number },
  ): void {
    const target = this.#buffers.bufferOf({ kind: 'buffer', name: route, access: 'read' });
    encoder.copyBufferToBuffer(this.#buffer, place * this.#layerBytes, target, 0, rows * routeWidth * 4);
  }

  destroy(): void {
    this.#buffer.destroy();
  }
}
