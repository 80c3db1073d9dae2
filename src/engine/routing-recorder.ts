/**
 * Both ends of recording which experts rows use: the worker gathers what runs say and posts it block by block; the main side
 * hands blocks on in order and says when each is done with. The worker's loop waits while too many are not, so that neither
 * side ever holds more than a few.
 */

import type { ExpertWatcher, RunMode } from '../experts/watch.ts';

/** Ids of a block at the least, while runs follow each other, and blocks that may be on their way. */
const BLOCK_IDS = 2 ** 15;
const BLOCKS_AHEAD = 2;

export interface RoutingBlock {
  readonly rows: number;
  /** [rows, layers, used] In order of the runs; a row's best first. */
  readonly ids: Uint16Array<ArrayBuffer>;
}

/** The worker's end. A run that fails leaves nothing. */
export class RoutingRecorder implements ExpertWatcher {
  readonly #places: ReadonlyMap<number, number>;
  readonly #used: number;
  readonly #post: (block: RoutingBlock) => void;
  /** The run under way. */
  #run = new Uint16Array(0);
  /** Runs that are not posted yet. */
  #gathered: Uint16Array[] = [];
  #gatheredIds = 0;
  #onTheirWay = 0;
  #wake: (() => void) | undefined;

  constructor(options: {
    /** Layers that are recorded, in order. */
    readonly layers: readonly number[];
    /** Experts that a row uses. */
    readonly used: number;
    readonly post: (block: RoutingBlock) => void;
  }) {
    const { layers, used, post } = options;
    this.#places = new Map(layers.map((layer, index) => [layer, index * used]));
    this.#used = used;
    this.#post = post;
  }

  began(_mode: RunMode, rows: number): void {
    this.#run = new Uint16Array(rows * this.#rowIds);
  }

  routed(layer: number, ids: ArrayLike<number>): void {
    const used = this.#used;
    const place = this.#places.get(layer);
    if (place === undefined) return;
    for (let row = 0; row * used < ids.length; row++) {
      const to = row * this.#rowIds + place;
      for (let rank = 0; rank < used; rank++) this.#run[to + rank] = ids[row * used + rank] as number;
    }
  }

  waited(): void {}

  brought(): void {}

  foreseen(): void {}

  pinned(): void {}

  ended(): void {
    this.#gathered.push(this.#run);
    this.#gatheredIds += this.#run.length;
  }

  /** Posts what has been gathered, if that is enough or nothing follows for now; waits until few are on their way. */
  async flush(last: boolean): Promise<void> {
    if (this.#gatheredIds === 0 || (!last && this.#gatheredIds < BLOCK_IDS)) return;
    const ids = new Uint16Array(this.#gatheredIds);
    let at = 0;
    for (const run of this.#gathered) {
      ids.set(run, at);
      at += run.length;
    }
    this.#gathered = [];
    this.#gatheredIds = 0;
    this.#onTheirWay++;
    this.#post({ rows: ids.length / this.#rowIds, ids });
    while (this.#onTheirWay >= BLOCKS_AHEAD) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** The main side is done with a block. */
  taken(): void {
    this.#onTheirWay--;
    this.#wake?.();
  }

  get #rowIds(): number {
    return this.#places.size * this.#used;
  }
}

/** The main side's end: hands blocks on, one after the other. */
export class RoutingReceiver {
  readonly #onRows: (block: RoutingBlock) => void | Promise<void>;
  #done: Promise<void> = Promise.resolve();
  #failure: { readonly error: unknown } | undefined;

  constructor(onRows: (block: RoutingBlock) => void | Promise<void>) {
    this.#onRows = onRows;
  }

  /** Settles when the block, and all before it, are done with; never rejects. After a failure blocks are dropped. */
  receive(block: RoutingBlock): Promise<void> {
    this.#done = this.#done.then(async () => {
      if (this.#failure !== undefined) return;
      try {
        await this.#onRows(block);
      } catch (error) {
        this.#failure = { error };
      }
    });
    return this.#done;
  }

  /** @throws what handing a block on threw */
  async finish(): Promise<void> {
    await this.#done;
    if (this.#failure !== undefined) throw this.#failure.error;
  }
}
