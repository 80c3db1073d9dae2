/**
 * Experts as the model's files have them, read straight into the memory that the device takes them from: the runtime's threads
 * copy out of the system's file cache side by side, and this thread only asks.
 */

import { DisposedError, InternalError } from '../../errors.ts';
import type { ByteSource, LocalFile } from '../../format/source.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import type { Platform } from '../../platform/platform.ts';
import type { ExpertFeed, ExpertMatrix } from './expert-feed.ts';
import { EXPERT_PARTS, expertName } from './slab.ts';

/** Bytes of a read, about: small enough that all threads have some, large enough that asking costs little. */
const READ_BYTES = 2 ** 20;
/** Reads that are asked for at once: more than there are threads, since this one may be busy when some are done. */
const READS_AT_ONCE = 32;

/** A layer's matrices of one part. */
interface Stack {
  readonly weight: Weight;
  /** Bytes of one. */
  readonly bytes: number;
  /** How many each of the file's tensors holds. */
  readonly inPart: number;
}

export class FileFeed implements ExpertFeed {
  readonly layout = 'rows';
  /** By index; absent where no expert's bytes are. */
  readonly #files: ReadonlyMap<number, LocalFile>;
  /** Those that it opened itself. */
  readonly #own: readonly LocalFile[];
  readonly #stacks: ReadonlyMap<string, Stack>;
  readonly #waiting: (() => void)[] = [];
  /** Reads under way, and who waits for the last of them. */
  #running = 0;
  #idle: (() => void) | undefined;
  #closing: Promise<void> | undefined;

  private constructor(made: {
    readonly files: ReadonlyMap<number, LocalFile>;
    readonly own: readonly LocalFile[];
    readonly stacks: ReadonlyMap<string, Stack>;
  }) {
    this.#files = made.files;
    this.#own = made.own;
    this.#stacks = made.stacks;
  }

  /**
   * @param model.layers whose experts are read
   * @param model.sources read as they are where they can fill any memory, else opened again by their addresses
   * @returns undefined where some of them have none
   * @throws SourceError `source` when a file cannot be opened again, or is another one
   */
  static async open(
    model: {
      readonly weights: Weights;
      readonly sources: readonly ByteSource[];
      readonly layers: readonly number[];
    },
    platform: Pick<Platform, 'openAgain'>,
  ): Promise<FileFeed | undefined> {
    const { weights, sources, layers } = model;
    const stacks = new Map(
      layers.flatMap((layer) =>
        EXPERT_PARTS.map((part) => {
          const name = expertName(layer, part);
          return [name, stackOf(name, weights.get(name))] as const;
        }),
      ),
    );
    const needed = new Set([...stacks.values()].flatMap(({ weight }) => weight.parts.map(({ source }) => source)));
    const files = new Map<number, LocalFile>();
    const own: LocalFile[] = [];
    try {
      for (const index of needed) {
        const source = sources[index];
        const address = source?.fileAddress;
        if (source === undefined || address === undefined) return undefined;
        if (!isLocal(source)) own.push(await platform.openAgain(address));
        files.set(index, isLocal(source) ? source : (own.at(-1) as LocalFile));
      }
      return new FileFeed({ files, own, stacks });
    } finally {
      if (files.size < needed.size) await Promise.all(own.map((file) => file.close()));
    }
  }

  bytesOf({ layer, part }: Pick<ExpertMatrix, 'layer' | 'part'>): number {
    return this.#stackOf({ layer, part }).bytes;
  }

  read(matrix: ExpertMatrix, target: Uint8Array): Promise<void> {
    const { file, offset } = this.#find(matrix);
    const count = Math.max(1, Math.round(target.byteLength / READ_BYTES));
    if (count === 1) return this.#piece(file, offset, target);
    const end = (index: number) => Math.floor((target.byteLength * index) / count);
    return allOf(
      Array.from({ length: count }, (_, index) =>
        this.#piece(file, offset + end(index), target.subarray(end(index), end(index + 1))),
      ),
    );
  }

  async #piece(file: LocalFile, offset: number, target: Uint8Array): Promise<void> {
    if (this.#running < READS_AT_ONCE) this.#running++;
    // Whoever is done hands on its place.
    else await new Promise<void>((go) => this.#waiting.push(go));
    try {
      if (this.#closing !== undefined) throw new DisposedError('the GPU backend');
      await file.readInto(offset, target);
    } finally {
      const next = this.#waiting.shift();
      if (next !== undefined) next();
      else if (--this.#running === 0) this.#idle?.();
    }
  }

  async verify(matrices: readonly ExpertMatrix[]): Promise<void> {
    await Promise.all([...new Set(matrices.map((matrix) => this.#find(matrix).file))].map((file) => file.verify()));
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    if (this.#running > 0) {
      await new Promise<void>((idle) => {
        this.#idle = idle;
      });
    }
    await Promise.allSettled(this.#own.map((file) => file.close()));
  }

  #stackOf({ layer, part }: Pick<ExpertMatrix, 'layer' | 'part'>): Stack {
    const name = expertName(layer, part);
    const stack = this.#stacks.get(name);
    if (stack === undefined) throw new InternalError(`${name} was to be read from its file, which is not open`);
    return stack;
  }

  #find(matrix: ExpertMatrix): { readonly file: LocalFile; readonly offset: number } {
    const { weight, bytes, inPart } = this.#stackOf(matrix);
    const part = weight.parts[Math.floor(matrix.expert / inPart)];
    const file = part && this.#files.get(part.source);
    if (part === undefined || file === undefined) {
      throw new InternalError(`expert ${matrix.expert} of ${weight.name} is in none of the model's files`);
    }
    return { file, offset: part.offset + (matrix.expert % inPart) * bytes };
  }
}

/** Settles when all have, whatever becomes of one: only then nothing is written any more. */
async function allOf(pieces: readonly Promise<void>[]): Promise<void> {
  const failed = (await Promise.allSettled(pieces)).find(({ status }) => status === 'rejected');
  if (failed !== undefined) throw (failed as PromiseRejectedResult).reason;
}

function isLocal(source: ByteSource): source is LocalFile {
  return source.verify !== undefined && source.fileAddress !== undefined;
}

function stackOf(name: string, weight: Weight | undefined): Stack {
  const experts = weight?.shape[0] ?? 0;
  const inPart = experts / (weight?.parts.length ?? 0);
  if (weight === undefined || !(Number.isInteger(inPart) && inPart > 0)) {
    throw new InternalError(`${name}: ${experts} experts in ${weight?.parts.length ?? 0} tensors`);
  }
  return { weight, bytes: weight.bytes / experts, inPart };
}
