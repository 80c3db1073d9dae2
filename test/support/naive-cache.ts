/**
 * The expert cache as its rules are told, without any data structure that is fast: what the real one is held to. One group,
 * one layer of `pairs` experts.
 */

import type { PolicyName } from '../../src/experts/policies.ts';

export interface NaiveOptions {
  readonly policy: PolicyName;
  readonly pairs: number;
  readonly slots: number;
  readonly halveEveryTokens: number;
  readonly pin?: { readonly afterTokens: number; readonly share: number };
}

interface Pair {
  readonly id: number;
  slot?: number;
  loading?: number;
  count: number;
  uses: number;
  last: number;
  wanted: boolean;
  missedAt: number;
  pinned: boolean;
}

export class NaiveCache {
  readonly #options: NaiveOptions;
  readonly #pairs: Pair[];
  readonly #free: number[];
  /** Residents that are not pinned; the least recently used first. `lru` has them all in the second. */
  #guarded: Pair[] = [];
  #order: Pair[] = [];
  #clock = 0;
  #step = 0;
  #tokens = 0;
  #sinceHalving = 0;
  #guardedMost: number;
  #pinsMade = false;

  constructor(options: NaiveOptions) {
    this.#options = options;
    this.#pairs = Array.from({ length: options.pairs }, (_, id) => ({
      id,
      count: 0,
      uses: 0,
      last: 0,
      wanted: false,
      missedAt: 0,
      pinned: false,
    }));
    this.#free = Array.from({ length: options.slots }, (_, slot) => slot);
    this.#guardedMost = Math.floor(0.75 * options.slots);
  }

  lookup(id: number): number | undefined {
    return this.#pairs[id].slot;
  }

  use(id: number, rows: number): void {
    const pair = this.#pairs[id];
    pair.count += Math.min(1, this.#options.halveEveryTokens / rows);
    pair.uses++;
    pair.last = ++this.#clock;
    if (pair.slot !== undefined) {
      if (!pair.pinned) this.#hit(pair);
      return;
    }
    pair.missedAt = this.#step;
    if (pair.loading === undefined && this.#options.policy !== 'static') pair.wanted = true;
  }

  endStep(rows: number): void {
    const { halveEveryTokens, pin, slots, policy } = this.#options;
    this.#step++;
    this.#tokens += rows;
    this.#sinceHalving += Math.min(rows, halveEveryTokens);
    if (this.#sinceHalving >= halveEveryTokens) {
      this.#sinceHalving -= halveEveryTokens;
      for (const pair of this.#pairs) pair.count = pair.count / 2 < 2 ** -10 ? 0 : pair.count / 2;
    }
    if (pin === undefined || policy === 'static' || this.#pinsMade || this.#tokens < pin.afterTokens) return;
    this.#pinsMade = true;
    const pinned = this.#pairs
      .toSorted((a, b) => b.uses - a.uses || a.id - b.id)
      .slice(0, Math.floor(pin.share * slots))
      .filter(({ uses }) => uses > 0);
    for (const pair of pinned) {
      pair.pinned = true;
      this.#forget(pair);
      pair.wanted = pair.slot === undefined && pair.loading === undefined;
    }
    this.#guardedMost = Math.floor(0.75 * (slots - pinned.length));
    this.#demote();
  }

  candidate(held: (id: number) => boolean): number | undefined {
    const patience = this.#options.policy === 'lfu' ? Infinity : 1;
    const [first] = this.#pairs
      .filter((pair) => pair.wanted && (pair.pinned || this.#step - pair.missedAt <= patience))
      .sort((a, b) => Number(b.pinned) - Number(a.pinned) || b.count - a.count || b.last - a.last || a.id - b.id);
    if (first === undefined || this.#free.length > 0) return first?.id;
    const victim = this.#victim(held);
    if (victim === undefined) return undefined;
    if (this.#options.policy === 'lfu' && !first.pinned && first.count <= victim.count) return undefined;
    return first.id;
  }

  begin(id: number, held: (id: number) => boolean): { slot: number; evicted?: number } | undefined {
    let slot = this.#free.shift();
    let evicted: number | undefined;
    if (slot === undefined) {
      const victim = this.#victim(held);
      if (victim === undefined) return undefined;
      slot = victim.slot as number;
      victim.slot = undefined;
      this.#forget(victim);
      evicted = victim.id;
    }
    this.#pairs[id].wanted = false;
    this.#pairs[id].loading = slot;
    return { slot, evicted };
  }

  commit(id: number): void {
    const pair = this.#pairs[id];
    pair.slot = pair.loading;
    pair.loading = undefined;
    if (!pair.pinned) this.#order.push(pair);
  }

  abort(id: number): void {
    const pair = this.#pairs[id];
    this.#free.unshift(pair.loading as number);
    pair.loading = undefined;
    pair.wanted = pair.pinned;
  }

  #hit(pair: Pair): void {
    this.#forget(pair);
    if (this.#options.policy === 'slru') {
      this.#guarded.push(pair);
      this.#demote();
    } else {
      this.#order.push(pair);
    }
  }

  #demote(): void {
    while (this.#guarded.length > this.#guardedMost) this.#order.push(this.#guarded.shift() as Pair);
  }

  #forget(pair: Pair): void {
    this.#guarded = this.#guarded.filter((other) => other !== pair);
    this.#order = this.#order.filter((other) => other !== pair);
  }

  #victim(held: (id: number) => boolean): Pair | undefined {
    if (this.#options.policy === 'static') return undefined;
    const may = [...this.#order, ...this.#guarded].filter(({ id }) => !held(id));
    if (this.#options.policy === 'lfu') may.sort((a, b) => a.count - b.count || a.last - b.last || a.id - b.id);
    return may[0];
  }
}
