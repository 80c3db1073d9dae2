/**
 * The best few of a row of logits, best first, equal ones by lower id, and the filters over them. A heap of the size asked
 * for finds them in one pass: the vocabulary is never sorted.
 */

import { minPDistance, notFiniteError } from '../backend/sampling.ts';

export class Candidates {
  /** [count] Token ids and their logits, after `take` best first. */
  ids = new Int32Array(64);
  logits = new Float32Array(64);
  count = 0;

  /**
   * The `k` best of `row` whose logit is above −Infinity.
   * @throws NonFiniteError `non_finite` for NaN and +Infinity.
   */
  take(row: Float32Array, k: number): void {
    if (this.ids.length < k) {
      this.ids = new Int32Array(k);
      this.logits = new Float32Array(k);
    }
    const { ids, logits } = this;
    let filled = 0;
    let least = -Infinity;
    const { length } = row;
    for (let id = 0; id < length; id++) {
      const logit = row[id]!;
      // An equal one has the higher id and stays out. NaN goes on: every comparison denies it.
      if (logit <= least) continue;
      if (!(logit < Infinity)) throw notFiniteError(id, logit);
      if (filled < k) {
        ids[filled] = id;
        logits[filled++] = logit;
        if (filled < k) continue;
        for (let at = (k >> 1) - 1; at >= 0; at--) this.#sink(at, k, ids[at]!, logits[at]!);
      } else {
        this.#sink(0, k, id, logit);
      }
      least = logits[0]!;
    }
    this.count = filled;
    if (filled < k) for (let at = (filled >> 1) - 1; at >= 0; at--) this.#sink(at, filled, ids[at]!, logits[at]!);
    // The worst lies at the root: taken out one by one, they fill the array from its end.
    for (let end = filled - 1; end > 0; end--) {
      const id = ids[end]!;
      const logit = logits[end]!;
      ids[end] = ids[0]!;
      logits[end] = logits[0]!;
      this.#sink(0, end, id, logit);
    }
  }

  /** Σ exp(logit − the best logit). */
  mass(): number {
    let sum = 0;
    for (let i = 0; i < this.count; i++) sum += Math.exp(this.logits[i]! - this.logits[0]!);
    return sum;
  }

  /**
   * Keeps the fewest best ones that hold a share `topP` of `mass`, at least one.
   * @returns whether they do; false when all together hold less.
   */
  keepTopP(topP: number, mass: number): boolean {
    if (topP >= 1) return true;
    let sum = 0;
    for (let i = 0; i < this.count; i++) {
      sum += Math.exp(this.logits[i]! - this.logits[0]!);
      if (sum >= topP * mass) {
        this.count = i + 1;
        return true;
      }
    }
    return false;
  }

  /** Keeps those at least `minP` times as likely as the best. */
  keepMinP(minP: number): void {
    if (minP <= 0) return;
    const least = Math.fround(this.logits[0]! + minPDistance(minP));
    while (this.count > 1 && this.logits[this.count - 1]! < least) this.count--;
  }

  /** One of them, with weights exp(logit / temperature), by `random` in [0, 1). */
  draw(temperature: number, random: number): number {
    const { ids, logits, count } = this;
    let mass = 0;
    for (let i = 0; i < count; i++) mass += Math.exp((logits[i]! - logits[0]!) / temperature);
    let left = random * mass;
    for (let i = 0; i < count; i++) {
      left -= Math.exp((logits[i]! - logits[0]!) / temperature);
      if (left < 0) return ids[i]!;
    }
    // Only rounding comes here.
    return ids[0]!;
  }

  /** Puts an entry into the heap of `size` entries at `at` or below; each entry is worse than its children. */
  #sink(at: number, size: number, id: number, logit: number): void {
    const { ids, logits } = this;
    for (let child = 2 * at + 1; child < size; child = 2 * at + 1) {
      const other = child + 1;
      if (other < size && isWorse(logits[other]!, ids[other]!, logits[child]!, ids[child]!)) child = other;
      if (!isWorse(logits[child]!, ids[child]!, logit, id)) break;
      ids[at] = ids[child]!;
      logits[at] = logits[child]!;
      at = child;
    }
    ids[at] = id;
    logits[at] = logit;
  }
}

function isWorse(logitA: number, idA: number, logitB: number, idB: number): boolean {
  return logitA < logitB || (logitA === logitB && idA > idB);
}

/**
 * The id of the largest logit, the lowest of equals; −1 when all are −Infinity.
 * @throws NonFiniteError `non_finite` for NaN and +Infinity.
 */
export function argmax(logits: Float32Array): number {
  let best = -Infinity;
  let id = -1;
  // Read once: in the loop's condition it costs more than the comparison.
  const { length } = logits;
  for (let i = 0; i < length; i++) {
    const logit = logits[i]!;
    // NaN goes on: every comparison denies it.
    if (logit <= best) continue;
    if (!(logit < Infinity)) throw notFiniteError(i, logit);
    best = logit;
    id = i;
  }
  return id;
}
