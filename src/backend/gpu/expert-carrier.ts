/**
 * Brings experts to the device's slots, from memory or from the model's file (`expert-feed.ts`). The host only moves bytes, into
 * staging buffers that stay mapped while they are not on their way; the device puts them into planes (`repack.ts`).
 */

import { DisposedError, InternalError, OutOfMemoryError, SourceError } from '../../errors.ts';
import type { Weights } from '../../model/weights.ts';
import type { Gpu } from './device.ts';
import type { ExpertFeed, ExpertMatrix } from './expert-feed.ts';
import { CheaperFeed, type FeedChoice, type FeedName } from './feed-choice.ts';
import { gpuFormat } from './formats/index.ts';
import { planeWords } from './formats.ts';
import { bytesIn, REPACK_ENTRIES_BYTES, Repacker, type RepackJob, type RepackKind } from './repack.ts';
import type { Carrier, Carrying, Placing } from './residency.ts';
import { EXPERT_PARTS, type Slab, slabWeight } from './slab.ts';
import { Staging } from './staging.ts';

const COPY_DST = 0x8;
const STORAGE = 0x80;

/** Bytes of a staging buffer at the most: fewer and larger submissions cost the host less, smaller ones begin sooner. */
const STAGING_BYTES = 16 * 2 ** 20;
/** Staging buffers: some are filled while the others are on their way. */
const STAGINGS = 4;
/** Of these, filled at once: reads of the next ones go on while one is ended. */
const FILLED_AT_ONCE = 3;
/** Where matrices begin in them. */
const ALIGN_BYTES = 64;

/** A matrix of every expert of a layer. */
interface Part extends RepackKind {
  readonly rows: number;
  readonly part: ExpertMatrix['part'];
  /** Bytes of one where each feed has it, and in a slot. */
  readonly feedBytes: Readonly<Record<FeedName, number>>;
  readonly slotBytes: number;
  readonly target: GPUBuffer;
}

/** A feed, and what makes planes of what it gives. */
interface Way {
  readonly name: FeedName;
  readonly feed: ExpertFeed;
  readonly repacker: Repacker;
}

/** Experts on their way that fit into a staging buffer, and its turn. */
interface Load {
  readonly placings: readonly Placing[];
  readonly staging: Staging;
  readonly turn: number;
}

interface Loading {
  /** Copies one more matrix. @returns whether there was one, and it could be done at once */
  advance(): boolean;
  finish(): Promise<void>;
}

/** A matrix on its way, and where it lies in the staging buffer. */
interface Piece {
  readonly matrix: ExpertMatrix;
  readonly at: number;
  readonly bytes: number;
  readonly job: RepackJob;
}

export interface CarrierOptions {
  readonly gpu: Gpu;
  readonly slabs: readonly Slab[];
  readonly weights: Weights;
  /** The buffer of a slab's stack, by the stack's name. */
  readonly bufferOf: (name: string) => GPUBuffer;
  /** Where experts come from; `file` where there is one. The carrier closes them. */
  readonly feeds: { readonly memory: ExpertFeed; readonly file?: ExpertFeed | undefined };
  /** Absent: whichever costs less. */
  readonly choice?: FeedChoice;
  /** Of a staging buffer, at the least as many as an expert takes; absent: {@link stagingBytesFor}. */
  readonly stagingBytes?: number;
  /** The file failed, and memory serves from now on; told once. */
  readonly onFileFault?: ((error: SourceError) => void) | undefined;
}

interface Made {
  readonly ways: readonly Way[];
  /** By layer. */
  readonly parts: ReadonlyMap<number, readonly Part[]>;
  readonly stagings: readonly Staging[];
  readonly raw: GPUBuffer;
}

export class ExpertCarrier implements Carrier {
  readonly #options: CarrierOptions;
  readonly #ways: readonly Way[];
  readonly #parts: ReadonlyMap<number, readonly Part[]>;
  readonly #stagings: readonly Staging[];
  readonly #raw: GPUBuffer;
  readonly #choice: FeedChoice;
  #next = 0;
  #fileFailed = false;
  #closing: Promise<unknown> | undefined;
  /** Experts and bytes brought so far, and how many of the bytes out of the file. */
  experts = 0;
  bytesBrought = 0;
  bytesRead = 0;

  private constructor(options: CarrierOptions, { ways, parts, stagings, raw }: Made) {
    this.#options = options;
    this.#choice = options.choice ?? new CheaperFeed();
    this.#ways = ways;
    this.#parts = parts;
    this.#stagings = stagings;
    this.#raw = raw;
  }

  /** @throws OutOfMemoryError `out_of_memory`; then the feeds stay the caller's to close */
  static async make(options: CarrierOptions): Promise<ExpertCarrier> {
    const { gpu, slabs, weights, bufferOf, feeds, stagingBytes = stagingBytesFor(slabs, weights) } = options;
    const kinds = slabs.flatMap(({ layers }, index) =>
      EXPERT_PARTS.map((part) => {
        const { format, shape, name } = slabWeight(slabs, index, part, weights);
        return { format, columns: shape.at(-1) as number, rows: shape.at(-2) as number, part, layers, name };
      }),
    );
    const ways: Way[] = [];
    for (const [name, feed] of Object.entries(feeds) as [FeedName, ExpertFeed | undefined][]) {
      if (feed === undefined) continue;
      ways.push({ name, feed, repacker: await Repacker.make(gpu, kinds, feed.layout) });
    }
    const parts = new Map<number, Part[]>();
    for (const { format, columns, rows, part, layers, name } of kinds) {
      const known = gpuFormat(format) as NonNullable<ReturnType<typeof gpuFormat>>;
      const slotBytes = rows * planeWords(known, columns).rowWords * 4;
      for (const layer of layers) {
        const feedBytes = { memory: 0, file: 0 };
        for (const { name: from, feed, repacker } of ways) {
          feedBytes[from] = checkedBytes(
            feed.bytesOf({ layer, part }),
            repacker.sourceBytes({ format, columns, rows }),
          );
        }
        const own = parts.get(layer) ?? [];
        own.push({ format, columns, rows, part, feedBytes, slotBytes, target: bufferOf(name) });
        parts.set(layer, own);
      }
    }
    const bytes = Math.max(aligned(stagingBytes), ...[...parts.values()].map(stagedBytes));
    return gpu.guarded(() => {
      const stagings: Staging[] = [];
      try {
        for (let index = 0; index < STAGINGS; index++) {
          stagings.push(new Staging(gpu, { label: `experts on their way ${index}`, bytes }));
        }
        const usage = STORAGE | COPY_DST;
        const raw = gpu.device.createBuffer({ label: 'experts as they come', size: bytes, usage });
        return new ExpertCarrier(options, { ways, parts, stagings, raw });
      } catch (cause) {
        for (const staging of stagings) staging.destroy();
        // Mapped memory that cannot be had is no event of the device.
        throw new OutOfMemoryError(
          `memory for bringing experts to the GPU cannot be had: ${(cause as Error).message}`,
          { cause },
        );
      }
    });
  }

  get bytes(): number {
    return this.#raw.size;
  }

  carry(placings: readonly Placing[], signal?: AbortSignal): Promise<void> {
    return this.begin(placings, signal).finish();
  }

  begin(placings: readonly Placing[], signal?: AbortSignal): Carrying {
    const waiting = [...this.#loadsOf(placings)];
    const begun = waiting.splice(0, FILLED_AT_ONCE).map((load) => this.#begin(load));
    return {
      advance: () => {
        begun.some((load) => load.advance());
      },
      finish: async () => {
        for (let load = begun.shift(); load !== undefined; load = begun.shift()) {
          await load.finish();
          signal?.throwIfAborted();
          const next = waiting.shift();
          if (next !== undefined) begun.push(this.#begin(next));
        }
      },
    };
  }

  /** As many together as fit into a staging buffer. */
  #loadsOf(placings: readonly Placing[]): readonly (readonly Placing[])[] {
    const { bytes: most } = this.#stagings[0] as Staging;
    const loads: Placing[][] = [];
    let bytes = most;
    for (const placing of placings) {
      const own = stagedBytes(this.#partsOf(placing.layer));
      if (bytes + own > most) {
        loads.push([]);
        bytes = 0;
      }
      loads.at(-1)?.push(placing);
      bytes += own;
    }
    return loads;
  }

  expertBytes(layer: number): number {
    return this.#partsOf(layer).reduce((sum, { slotBytes }) => sum + slotBytes, 0);
  }

  #partsOf(layer: number): readonly Part[] {
    return this.#parts.get(layer) as readonly Part[];
  }

  #begin(placings: readonly Placing[]): Loading {
    const staging = this.#stagings[this.#next] as Staging;
    this.#next = (this.#next + 1) % this.#stagings.length;
    const load = { placings, staging, turn: staging.take() };
    const file = this.#ways.find(({ name }) => name === 'file');
    return file !== undefined && !this.#fileFailed && this.#choice.next() === 'file'
      ? this.#reading(file, load)
      : this.#copying(load);
  }

  /** Out of memory, matrix by matrix, by this thread. */
  #copying(load: Load): Loading {
    const { staging, placings, turn } = load;
    const way = this.#ways.find(({ name }) => name === 'memory') as Way;
    const pieces = this.#piecesOf(way, placings);
    let done = 0;
    let ms = 0;
    const copyNext = () => {
      const startMs = performance.now();
      const { matrix, at, bytes } = pieces[done++] as Piece;
      staging.write({ turn, at, bytes }, (memory) => way.feed.read(matrix, memory));
      ms += performance.now() - startMs;
    };
    return {
      advance: () => {
        if (!staging.idle || done === pieces.length) return false;
        copyNext();
        return true;
      },
      finish: async () => {
        await staging.untilIdle();
        while (done < pieces.length) copyNext();
        this.#send(way, load, pieces);
        this.#learn(way, pieces, ms);
      },
    };
  }

  /** Out of the file: all is asked for at once, and nothing is left to do but to wait. */
  #reading(way: Way, load: Load): Loading {
    const { staging, placings, turn } = load;
    const pieces = this.#piecesOf(way, placings);
    let startMs = 0;
    const fill = async () => {
      if (!staging.idle) await staging.untilIdle();
      startMs = performance.now();
      const { feed } = way;
      await Promise.all(
        pieces.map(({ matrix, at, bytes }) =>
          staging.write({ turn, at, bytes }, (memory) => feed.read(matrix, memory)),
        ),
      );
      await feed.verify?.(pieces.map(({ matrix }) => matrix));
    };
    const beganMs = performance.now();
    const filled = fill();
    const askingMs = performance.now() - beganMs;
    // Heard when it is ended, if it is.
    filled.catch(() => {});
    return {
      advance: () => false,
      finish: async () => {
        const endingMs = performance.now();
        try {
          await filled;
        } catch (error) {
          if (this.#closing !== undefined) throw new DisposedError('the GPU backend');
          if (!(error instanceof SourceError)) throw error;
          this.#giveUpFile(error);
          // What has come of it is written over.
          return this.#copying(load).finish();
        }
        const ms = askingMs + performance.now() - Math.max(endingMs, startMs);
        this.#send(way, load, pieces);
        this.#learn(way, pieces, ms);
      },
    };
  }

  #piecesOf({ name }: Way, placings: readonly Placing[]): readonly Piece[] {
    let end = 0;
    return placings.flatMap(({ layer, expert, slot }) =>
      this.#partsOf(layer).map(({ format, columns, rows, part, feedBytes, slotBytes, target }): Piece => {
        const at = end;
        const bytes = feedBytes[name];
        end += aligned(bytes);
        const job = { format, columns, rows, source: at, target, targetOffset: slot * slotBytes };
        return { matrix: { layer, part, expert }, at, bytes, job };
      }),
    );
  }

  #send({ repacker }: Way, { staging, turn }: Load, pieces: readonly Piece[]): void {
    const { gpu } = this.#options;
    if (this.#closing !== undefined) throw new DisposedError('the GPU backend');
    gpu.check();
    const { at, bytes } = pieces.at(-1) as Piece;
    staging.send(turn, (buffer) => {
      const encoder = gpu.device.createCommandEncoder();
      encoder.copyBufferToBuffer(buffer, 0, this.#raw, 0, aligned(at + bytes));
      repacker.encode(encoder, { raw: this.#raw, jobs: pieces.map(({ job }) => job) });
      gpu.device.queue.submit([encoder.finish()]);
    });
  }

  #learn({ name }: Way, pieces: readonly Piece[], ms: number): void {
    const bytes = pieces.reduce((sum, piece) => sum + piece.bytes, 0);
    this.#choice.learn(name, { bytes, ms });
    this.experts += pieces.length / EXPERT_PARTS.length;
    this.bytesBrought += bytes;
    if (name === 'file') this.bytesRead += bytes;
  }

  #giveUpFile(error: SourceError): void {
    if (this.#fileFailed) return;
    this.#fileFailed = true;
    this.#options.onFileFault?.(error);
  }

  /** Gives up what is on its way. */
  destroy(): void {
    if (this.#closing !== undefined) return;
    // What is being read still has its memory.
    this.#closing = Promise.allSettled(this.#ways.map(({ feed }) => feed.close()));
    for (const staging of this.#stagings) staging.destroy();
    this.#raw.destroy();
    for (const { repacker } of this.#ways) repacker.destroy();
  }

  /** Settles when nothing is on its way any more. */
  async settled(): Promise<void> {
    await Promise.allSettled([this.#closing, ...this.#stagings.map((staging) => staging.settled())]);
  }
}

/** Bytes of a staging buffer for experts of these slabs: those that are filled at once hold as many as pass through at once. */
function stagingBytesFor(slabs: readonly Slab[], weights: Weights): number {
  const largest = Math.max(...slabs.map((_, index) => largestStaged(slabs, index, weights)));
  const together = Math.max(...slabs.map(({ passing }) => passing));
  return aligned(Math.max(largest, Math.min(STAGING_BYTES, Math.ceil((together * largest) / FILLED_AT_ONCE))));
}

/** Bytes that an expert of a slab takes in a staging buffer, whichever way it comes. */
function largestStaged(slabs: readonly Slab[], index: number, weights: Weights): number {
  return EXPERT_PARTS.reduce((sum, part) => {
    const { format, shape } = slabWeight(slabs, index, part, weights);
    const matrix = { format, columns: shape.at(-1) as number, rows: shape.at(-2) as number };
    return sum + aligned(Math.max(...(['groups', 'rows'] as const).map((layout) => bytesIn(layout, matrix))));
  }, 0);
}

/** Bytes that experts of slabs on their way take, on the device and where it reads from. */
export function carrierBytes(slabs: readonly Slab[], weights: Weights): number {
  // A repacker for each of two feeds.
  return (STAGINGS + 1) * stagingBytesFor(slabs, weights) + 2 * REPACK_ENTRIES_BYTES;
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / ALIGN_BYTES) * ALIGN_BYTES;
}

/** Bytes that an expert takes in a staging buffer, whichever way it comes. */
function stagedBytes(parts: readonly Part[]): number {
  return parts.reduce((sum, { feedBytes: { memory, file } }) => sum + aligned(Math.max(memory, file)), 0);
}

function checkedBytes(found: number, expected: number): number {
  if (found === expected) return found;
  throw new InternalError(
    `a matrix of an expert has ${found} bytes where it comes from, and ${expected} were expected`,
  );
}
