/** How often and how lately each pair of a layer and an expert was used; what all policies rank by. */

/** A count that has halved this far says nothing any more, and ties are for recency. */
const FORGOTTEN = 2 ** -10;

export class Usage {
  /** [pairs] Uses, halved now and then. */
  readonly counts: Float64Array;
  /** [pairs] The last use, on a clock that counts uses; 0: never. */
  readonly last: Float64Array;
  #clock = 0;

  constructor(pairs: number) {
    this.counts = new Float64Array(pairs);
    this.last = new Float64Array(pairs);
  }

  record(pair: number, weight: number): void {
    this.counts[pair] += weight;
    this.last[pair] = ++this.#clock;
  }

  halve(): void {
    for (let pair = 0; pair < this.counts.length; pair++) {
      const count = this.counts[pair] / 2;
      this.counts[pair] = count < FORGOTTEN ? 0 : count;
    }
  }

  /** Whether `a` is worth less than `b`: used less, else used longer ago, else of the lower index. A total order. */
  readonly colder = (a: number, b: number): boolean => {
    const { counts, last } = this;
    if (counts[a] !== counts[b]) return counts[a] < counts[b];
    return last[a] === last[b] ? a < b : last[a] < last[b];
  };

  /** Whether `a` is worth more than `b`: used more, else used later, else of the lower index. A total order. */
  readonly hotter = (a: number, b: number): boolean => {
    const { counts, last } = this;
    if (counts[a] !== counts[b]) return counts[a] > counts[b];
    return last[a] === last[b] ? a < b : last[a] > last[b];
  };
}
