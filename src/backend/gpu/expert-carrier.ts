/**
 * Brings experts from where the CPU keeps them to the device's slots. The host only copies bytes, into staging buffers that stay
 * mapped while they are not on their way; the device puts them into planes (`repack.ts`).
 */

import { OutOfMemoryError } from '../../errors.ts';
import type { Weights } from '../../model/weights.ts';
import type { ExpertRunner } from '../backend.ts';
import type { Gpu } from './device.ts';
import { gpuFormat } from './formats/index.ts';
import { planeWords } from './formats.ts';
import { Repacker, type RepackJob, type RepackKind } from './repack.ts';
import type { Carrier, Carrying, Placing } from './residency.ts';
import { EXPERT_PARTS, type Slab, slabWeight } from './slab.ts';

const MAP_WRITE = 0x2;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const STORAGE = 0x80;

/** Bytes of a staging buffer: fewer and larger submissions cost the host less. */
const STAGING_BYTES = 32 * 2 ** 20;
/** Staging buffers: one is filled while the others are on their way. */
const STAGINGS = 3;

interface Part extends RepackKind {
  readonly rows: number;
  /** Bytes where the CPU keeps one, and in a slot. */
  readonly homeBytes: number;
  readonly slotBytes: number;
  readonly target: GPUBuffer;
}

interface Staging {
  readonly buffer: GPUBuffer;
  /** When it is mapped again; absent: it is. */
  ready?: Promise<void> | undefined;
  /** Its memory, once asked for: it can be had once a mapping. */
  memory?: Uint8Array | undefined;
}

export interface CarrierOptions {
  readonly gpu: Gpu;
  readonly slabs: readonly Slab[];
  readonly weights: Weights;
  /** The buffer of a slab's stack, by the stack's name. */
  readonly bufferOf: (name: string) => GPUBuffer;
  readonly home: NonNullable<ExpertRunner['home']>;
  readonly copyBytes: (from: Uint8Array, to: Uint8Array) => void;
}

export class ExpertCarrier implements Carrier {
  readonly #options: CarrierOptions;
  readonly #repacker: Repacker;
  /** By layer. */
  readonly #parts: ReadonlyMap<number, readonly Part[]>;
  readonly #stagings: readonly Staging[];
  readonly #raw: GPUBuffer;
  #next = 0;

  private constructor(
    options: CarrierOptions,
    made: {
      readonly repacker: Repacker;
      readonly parts: ReadonlyMap<number, readonly Part[]>;
      readonly stagings: readonly Staging[];
      readonly raw: GPUBuffer;
    },
  ) {
    this.#options = options;
    this.#repacker = made.repacker;
    this.#parts = made.parts;
    this.#stagings = made.stagings;
    this.#raw = made.raw;
  }

  /** @throws OutOfMemoryError `out_of_memory` */
  static async make(options: CarrierOptions): Promise<ExpertCarrier> {
    const { gpu, slabs, weights, bufferOf } = options;
    const { device } = gpu;
    const kinds = slabs.flatMap((_, index) =>
      EXPERT_PARTS.map((part) => {
        const { format, shape } = slabWeight(slabs, index, part, weights);
        return { format, columns: shape.at(-1) as number, rows: shape.at(-2) as number, part, index };
      }),
    );
    const repacker = await Repacker.make(gpu, kinds, 'groups');
    const partsOf = (slab: number) =>
      kinds
        .filter(({ index }) => index === slab)
        .map(({ format, columns, rows, part, index }): Part => {
          const known = gpuFormat(format) as NonNullable<ReturnType<typeof gpuFormat>>;
          return {
            format,
            columns,
            rows,
            homeBytes: repacker.sourceBytes({ format, columns, rows }),
            slotBytes: rows * planeWords(known, columns).rowWords * 4,
            target: bufferOf(slabWeight(slabs, index, part, weights).name),
          };
        });
    const parts = new Map(slabs.flatMap(({ layers }, slab) => layers.map((layer) => [layer, partsOf(slab)] as const)));
    const largest = Math.max(...[...parts.values()].map(bytesOf));
    const size = Math.ceil(Math.max(STAGING_BYTES, largest) / 16) * 16;
    return gpu.guarded(() => {
      try {
        const stagings = Array.from(
          { length: STAGINGS },
          (_, index): Staging => ({
            buffer: device.createBuffer({
              label: `experts on their way ${index}`,
              size,
              usage: MAP_WRITE | COPY_SRC,
              mappedAtCreation: true,
            }),
          }),
        );
        const raw = device.createBuffer({ label: 'experts as they come', size, usage: STORAGE | COPY_DST });
        return new ExpertCarrier(options, { repacker, parts, stagings, raw });
      } catch (cause) {
        // Mapped memory that cannot be had is no event of the device.
        throw new OutOfMemoryError(
          `memory for bringing experts to the GPU cannot be had: ${(cause as Error).message}`,
          {
            cause,
          },
        );
      }
    });
  }

  get bytes(): number {
    return this.#raw.size;
  }

  async carry(placings: readonly Placing[]): Promise<void> {
    const { size } = (this.#stagings[0] as Staging).buffer;
    for (let from = 0; from < placings.length; ) {
      let end = from;
      for (let bytes = 0; end < placings.length; end++) {
        bytes += bytesOf(this.#partsOf((placings[end] as Placing).layer));
        if (bytes > size) break;
      }
      await this.#load(placings.slice(from, end)).finish();
      from = end;
    }
  }

  begin(placings: readonly Placing[]): Carrying {
    const { size } = (this.#stagings[0] as Staging).buffer;
    const bytes = placings.reduce((sum, { layer }) => sum + bytesOf(this.#partsOf(layer)), 0);
    // Too much for one is brought all at once, at the end.
    if (bytes > size) return { advance: () => {}, finish: () => this.carry(placings) };
    return this.#load(placings);
  }

  expertBytes(layer: number): number {
    return bytesOf(this.#partsOf(layer));
  }

  #partsOf(layer: number): readonly Part[] {
    return this.#parts.get(layer) as readonly Part[];
  }

  /** A staging buffer on its way to be filled with experts that fit into it, matrix by matrix. */
  #load(placings: readonly Placing[]): Carrying {
    const { gpu, home, copyBytes } = this.#options;
    const pieces = placings.flatMap((placing) =>
      this.#partsOf(placing.layer).map((part, index) => ({ ...placing, part, index })),
    );
    const jobs: RepackJob[] = [];
    let at = 0;
    const staging = this.#stagings[this.#next] as Staging;
    if (pieces.length > 0) this.#next = (this.#next + 1) % this.#stagings.length;
    const copyNext = () => {
      const { layer, expert, slot, part, index } = pieces[jobs.length] as (typeof pieces)[number];
      staging.memory ??= new Uint8Array(staging.buffer.getMappedRange());
      copyBytes(home(layer, EXPERT_PARTS[index] as (typeof EXPERT_PARTS)[number], expert), staging.memory.subarray(at));
      const { format, columns, rows, target, slotBytes, homeBytes } = part;
      jobs.push({ format, columns, rows, source: at, target, targetOffset: slot * slotBytes });
      at += homeBytes;
    };
    return {
      advance: () => {
        if (staging.ready === undefined && jobs.length < pieces.length) copyNext();
      },
      finish: async () => {
        if (pieces.length === 0) return;
        if (staging.ready !== undefined) await staging.ready;
        gpu.check();
        while (jobs.length < pieces.length) copyNext();
        this.#send(staging, jobs, at);
      },
    };
  }

  #send(staging: Staging, jobs: readonly RepackJob[], bytes: number): void {
    const { device } = this.#options.gpu;
    staging.memory = undefined;
    staging.buffer.unmap();
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(staging.buffer, 0, this.#raw, 0, bytes);
    this.#repacker.encode(encoder, { raw: this.#raw, jobs });
    device.queue.submit([encoder.finish()]);
    // Why it fails, the device says.
    const ready = staging.buffer.mapAsync(MAP_WRITE).then(
      () => {
        if (staging.ready === ready) staging.ready = undefined;
      },
      () => {},
    );
    staging.ready = ready;
  }

  /** Gives up what is on its way. */
  destroy(): void {
    for (const { buffer } of this.#stagings) buffer.destroy();
    this.#raw.destroy();
    this.#repacker.destroy();
  }

  /** Settles when nothing is on its way any more. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#stagings.map(({ ready }) => ready));
  }
}

function bytesOf(parts: readonly Part[]): number {
  return parts.reduce((sum, { homeBytes }) => sum + homeBytes, 0);
}
