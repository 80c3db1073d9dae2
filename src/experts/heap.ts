/** A priority queue over the ids 0 … capacity − 1, each in it at most once, that finds and moves any of them. */

export class IndexedHeap {
  readonly #ids: Int32Array;
  /** By id: where it stands in `#ids`, or −1. */
  readonly #at: Int32Array;
  readonly #before: (a: number, b: number) => boolean;
  #size = 0;

  /** @param before whether `a` comes out before `b`: a total order, so that what comes out never depends on what went in when */
  constructor(capacity: number, before: (a: number, b: number) => boolean) {
    this.#ids = new Int32Array(capacity);
    this.#at = new Int32Array(capacity).fill(-1);
    this.#before = before;
  }

  get size(): number {
    return this.#size;
  }

  has(id: number): boolean {
    return this.#at[id] >= 0;
  }

  /** The first in order. */
  peek(): number | undefined {
    return this.#size === 0 ? undefined : this.#ids[0];
  }

  /** Puts `id` in, or to its new place where it is in already and its order has changed. */
  put(id: number): void {
    if (!this.has(id)) this.#place(id, this.#size++);
    this.#settle(id);
  }

  /** Takes `id` out, if it is in. */
  remove(id: number): void {
    const at = this.#at[id];
    if (at < 0) return;
    this.#at[id] = -1;
    const last = this.#ids[--this.#size];
    if (last === id) return;
    this.#place(last, at);
    this.#settle(last);
  }

  /** Puts all in order again after the order of many has changed. */
  rebuild(): void {
    for (let at = (this.#size >> 1) - 1; at >= 0; at--) this.#sink(this.#ids[at]);
  }

  #place(id: number, at: number): void {
    this.#ids[at] = id;
    this.#at[id] = at;
  }

  #settle(id: number): void {
    for (let at = this.#at[id]; at > 0; ) {
      const parent = (at - 1) >> 1;
      const above = this.#ids[parent];
      if (!this.#before(id, above)) break;
      this.#place(above, at);
      this.#place(id, parent);
      at = parent;
    }
    this.#sink(id);
  }

  #sink(id: number): void {
    for (let at = this.#at[id]; ; ) {
      let child = 2 * at + 1;
      if (child >= this.#size) return;
      if (child + 1 < this.#size && this.#before(this.#ids[child + 1], this.#ids[child])) child++;
      const below = this.#ids[child];
      if (!this.#before(below, id)) return;
      this.#place(below, at);
      this.#place(id, child);
      at = child;
    }
  }
}
