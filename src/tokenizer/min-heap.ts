/** A binary heap of numbers, smallest first. Merges are ordered by `rank * length + position`, which one number holds. */

export class MinHeap {
  #items = new Float64Array(256);
  #size = 0;

  clear(): void {
    this.#size = 0;
  }

  push(value: number): void {
    if (this.#size === this.#items.length) {
      const larger = new Float64Array(this.#size * 2);
      larger.set(this.#items);
      this.#items = larger;
    }
    const items = this.#items;
    let at = this.#size++;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (items[parent]! <= value) break;
      items[at] = items[parent]!;
      at = parent;
    }
    items[at] = value;
  }

  /** The smallest number, taken out; −1 when there is none (all numbers pushed are at least 0). */
  pop(): number {
    if (this.#size === 0) return -1;
    const items = this.#items;
    const smallest = items[0]!;
    const last = items[--this.#size]!;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= this.#size) break;
      if (child + 1 < this.#size && items[child + 1]! < items[child]!) child++;
      if (items[child]! >= last) break;
      items[at] = items[child]!;
      at = child;
    }
    items[at] = last;
    return smallest;
  }
}
