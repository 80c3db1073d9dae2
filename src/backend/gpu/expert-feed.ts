/** Where the bytes of experts come from that are brought to the device: what a feed is, and the one that copies them from memory. */

import type { ExpertPart } from '../../model/weights.ts';
import type { ExpertRunner } from '../backend.ts';
import type { SourceLayout } from './repack.ts';

/** One matrix of an expert. */
export interface ExpertMatrix {
  readonly layer: number;
  readonly part: ExpertPart;
  readonly expert: number;
}

export interface ExpertFeed {
  /** How its matrices lie in their bytes. */
  readonly layout: SourceLayout;
  /** Bytes of a matrix, the same for every expert of a layer. */
  bytesOf(matrix: Pick<ExpertMatrix, 'layer' | 'part'>): number;
  /**
   * Fills `target`, which has the matrix's bytes. What it returns, if anything, settles when nothing is written there any more,
   * whichever way.
   * @throws SourceError `source` when the bytes cannot be had; DisposedError `disposed` after `close`
   */
  read(matrix: ExpertMatrix, target: Uint8Array): void | Promise<void>;
  /**
   * Says that matrices that were read before are what they must be; absent where nothing could have changed them.
   * @throws SourceError `source` when they may not be
   */
  verify?(matrices: readonly ExpertMatrix[]): Promise<void>;
  /** Reads nothing any more; settles when nothing is being read. */
  close(): Promise<void>;
}

/** Experts as the CPU stores them, copied by this thread. */
export class MemoryFeed implements ExpertFeed {
  readonly layout = 'groups';
  readonly #home: NonNullable<ExpertRunner['home']>;
  readonly #copyBytes: (from: Uint8Array, to: Uint8Array) => void;

  constructor(made: {
    readonly home: NonNullable<ExpertRunner['home']>;
    readonly copyBytes: (from: Uint8Array, to: Uint8Array) => void;
  }) {
    this.#home = made.home;
    this.#copyBytes = made.copyBytes;
  }

  bytesOf({ layer, part }: Pick<ExpertMatrix, 'layer' | 'part'>): number {
    return this.#home(layer, part, 0).byteLength;
  }

  read({ layer, part, expert }: ExpertMatrix, target: Uint8Array): void {
    this.#copyBytes(this.#home(layer, part, expert), target);
  }

  async close(): Promise<void> {}
}
