/** The ids 0 … capacity − 1 in order of use, each in it at most once: everything but walking it takes constant time. */

const NONE = -1;

export class RecencyList {
  /** By id: the next one that was used later, and the one that was used earlier. The entry behind the last id is the ring's end. */
  readonly #later: Int32Array;
  readonly #earlier: Int32Array;
  readonly #end: number;
  #size = 0;

  constructor(capacity: number) {
    this.#later = new Int32Array(capacity + 1).fill(NONE);
    this.#earlier = new Int32Array(capacity + 1).fill(NONE);
    this.#end = capacity;
    this.#later[capacity] = capacity;
    this.#earlier[capacity] = capacity;
  }

  get size(): number {
    return this.#size;
  }

  has(id: number): boolean {
    return this.#later[id] !== NONE;
  }

  /** `id` is the latest used now, whether it was in or not. */
  use(id: number): void {
    this.remove(id);
    const latest = this.#earlier[this.#end];
    this.#link(latest, id);
    this.#link(id, this.#end);
    this.#size++;
  }

  /** Takes `id` out, if it is in. */
  remove(id: number): void {
    if (!this.has(id)) return;
    this.#link(this.#earlier[id], this.#later[id]);
    this.#later[id] = NONE;
    this.#earlier[id] = NONE;
    this.#size--;
  }

  /** The one whose last use is the longest ago, among those that `skip` does not rule out. */
  oldest(skip?: (id: number) => boolean): number | undefined {
    let id = this.#later[this.#end];
    while (id !== this.#end && skip?.(id) === true) id = this.#later[id];
    return id === this.#end ? undefined : id;
  }

  #link(earlier: number, later: number): void {
    this.#later[earlier] = later;
    this.#earlier[later] = earlier;
  }
}
