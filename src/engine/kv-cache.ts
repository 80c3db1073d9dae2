/**
 * Which page of the KV cache holds which positions of which timeline. Rows are written by the executable; here lives only
 * the bookkeeping: pages of {@link PAGE_ROWS} positions, handed out as timelines grow and given back as they rewind.
 */

import { PAGE_ROWS } from '../backend/backend.ts';
import type { Mode } from '../backend/kernel.ts';
import { InternalError, OutOfMemoryError } from '../errors.ts';

/** The cache's pages; each belongs to one timeline or is free. */
export class PagePool {
  readonly total: number;
  /** Free pages; the last one is handed out next. */
  readonly #free: number[] = [];
  /** Asked to give pages back when fewer than `needed` are free: those of timelines that nobody is computing. */
  onShortage: (needed: number, asking: Timeline) => void = () => {};

  constructor(total: number) {
    this.total = total;
    for (let page = total - 1; page >= 0; page--) this.#free.push(page);
  }

  get free(): number {
    return this.#free.length;
  }

  take(): number {
    const page = this.#free.pop();
    if (page === undefined) throw new InternalError('a cache page was taken although none is free');
    return page;
  }

  release(page: number): void {
    this.#free.push(page);
  }
}

/** One sequence's rows in the cache. */
export class Timeline {
  readonly #pool: PagePool;
  readonly #pages: Int32Array;
  #pageCount = 0;
  #table: Int32Array;
  #length = 0;
  #promptRows = 0;

  /** @param context the most positions it may have */
  constructor(pool: PagePool, context: number) {
    this.#pool = pool;
    this.#pages = new Int32Array(Math.ceil(context / PAGE_ROWS));
    this.#table = this.#pages.subarray(0, 0);
  }

  /** Positions whose keys and values the cache holds. */
  get length(): number {
    return this.#length;
  }

  /** Of these, the leading ones that were computed as rows of a prompt. */
  get promptRows(): number {
    return this.#promptRows;
  }

  /** Its pages in order of position, those reserved included. */
  get pageTable(): Int32Array {
    return this.#table;
  }

  /** How many more positions it may have without taking pages from anybody. */
  get room(): number {
    const pages = Math.min(this.#pages.length, this.#pageCount + this.#pool.free);
    return pages * PAGE_ROWS - this.#length;
  }

  /**
   * Makes sure that `rows` more positions have pages; all of them or none.
   * @throws OutOfMemoryError `out_of_memory` when too few pages are free.
   */
  reserve(rows: number): void {
    const needed = Math.ceil((this.#length + rows) / PAGE_ROWS);
    if (needed > this.#pages.length) {
      throw new InternalError(
        `a timeline of ${this.#pages.length} pages was asked to hold ${this.#length + rows} positions`,
      );
    }
    const more = needed - this.#pageCount;
    if (more <= 0) return;
    if (more > this.#pool.free) this.#pool.onShortage(more, this);
    if (more > this.#pool.free) {
      throw new OutOfMemoryError(
        `the KV cache is full: position ${this.#length + rows} needs ${more} more of its ${this.#pool.total} pages of ` +
          `${PAGE_ROWS} tokens, but ${this.#pool.free} are free and sessions that are at work hold the rest; let fewer work at once, ` +
          'or load the model for more sessions',
        { data: { pages: this.#pool.total, free: this.#pool.free, needed: more } },
      );
    }
    while (this.#pageCount < needed) this.#pages[this.#pageCount++] = this.#pool.take();
    this.#table = this.#pages.subarray(0, this.#pageCount);
  }

  /** `rows` more positions have been written. */
  advance(rows: number, mode: Mode): void {
    if (mode === 'prompt' && this.#promptRows === this.#length) this.#promptRows += rows;
    this.#length += rows;
  }

  /** Forgets every position from `length` on and gives back the pages that held nothing else. */
  rewind(length: number): void {
    this.#length = Math.min(this.#length, length);
    this.#promptRows = Math.min(this.#promptRows, this.#length);
    const needed = Math.ceil(this.#length / PAGE_ROWS);
    if (needed === this.#pageCount) return;
    while (this.#pageCount > needed) this.#pool.release(this.#pages[--this.#pageCount]!);
    this.#table = this.#pages.subarray(0, this.#pageCount);
  }
}
