/**
 * What the host writes for split layers, always by the queue and so in order with what is submitted: which slot each expert is in,
 * and what the CPU has computed.
 */

import { ABSENT, type Binding, HOST_MADE, HOST_PLACES } from './builder.ts';
import type { Gpu } from './device.ts';
import type { Residency } from './residency.ts';

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
  /** [rows · used] By pair: the result that is the CPU's, or ABSENT. Written by who asks the CPU. */
  readonly places: Uint32Array<ArrayBuffer>;
  readonly #buffers: Buffers;
  readonly #shape: { readonly hidden: number; readonly used: number };
  /** Rows from the first on whose places on the device may name results. */
  #placedRows = 0;

  constructor(buffers: Buffers, shape: { readonly rows: number; readonly hidden: number; readonly used: number }) {
    this.#buffers = buffers;
    this.#shape = shape;
    this.places = new Uint32Array(shape.rows * shape.used).fill(ABSENT);
    this.#placedRows = shape.rows;
    this.clear();
  }

  /** @param made [pairs, hidden]; of a run of `rows` rows */
  write(made: Float32Array, { pairs, rows }: { readonly pairs: number; readonly rows: number }): void {
    const { queue } = this.#buffers.gpu.device;
    queue.writeBuffer(this.#buffer(HOST_MADE), 0, made as Float32Array<ArrayBuffer>, 0, pairs * this.#shape.hidden);
    queue.writeBuffer(this.#buffer(HOST_PLACES), 0, this.places, 0, rows * this.#shape.used);
    this.#placedRows = Math.max(this.#placedRows, rows);
  }

  /** Nothing is the CPU's. */
  clear(): void {
    if (this.#placedRows === 0) return;
    this.places.fill(ABSENT);
    const { queue } = this.#buffers.gpu.device;
    queue.writeBuffer(this.#buffer(HOST_PLACES), 0, this.places, 0, this.#placedRows * this.#shape.used);
    this.#placedRows = 0;
  }

  #buffer(name: string): GPUBuffer {
    return this.#buffers.bufferOf({ kind: 'buffer', name, access: 'read' });
  }
}
