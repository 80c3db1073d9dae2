/**
 * The slots of one group of layers: which pair lies in which, and who gets one next. A slot belongs to one pair at a time,
 * from the moment its upload begins; the pair is seen there from the moment its upload is done. Pairs are numbered within
 * the group, by layer, then expert.
 */

import { InternalError } from '../errors.ts';
import { IndexedHeap } from './heap.ts';
import { makePolicy, type PolicyName } from './policies.ts';
import type { Policy } from './policy.ts';
import { Usage } from './usage.ts';

const NONE = -1;

/** Keeps the hottest pairs in their slots for good, once it is known which they are. */
export interface Pinning {
  /** Tokens to wait for. */
  readonly afterTokens: number;
  /** Of the slots, 0 … 1. */
  readonly share: number;
}

export interface GroupOptions {
  /** Pairs are 0 … pairs − 1. */
  readonly pairs: number;
  readonly slots: number;
  readonly policy: PolicyName;
  /** Tokens after which all counts are halved. */
  readonly halveEveryTokens: number;
  readonly pin?: Pinning;
}

/** Whether a pair must keep its slot for now. */
export type Held = (pair: number) => boolean;

export class Group {
  readonly slots: number;
  /** [pairs] Where each pair is to be found: its slot, or −1. */
  readonly visible: Int32Array;
  readonly usage: Usage;
  readonly #policy: Policy;
  readonly #halveEveryTokens: number;
  readonly #pin: Pinning | undefined;
  /** [pairs] The slot that a pair's upload goes to, or −1. */
  readonly #loading: Int32Array;
  /** [slots] The pair that lies there or is on its way there, or −1. */
  readonly #holders: Int32Array;
  /** The last one is handed out next. */
  readonly #free: number[] = [];
  readonly #pinned: Uint8Array;
  /** Pairs that were missed and are in no slot, the hottest first; whose time has passed they leave when they come up. */
  readonly #wanted: IndexedHeap;
  /** [pairs] The step of the last miss. */
  readonly #missedAt: Float64Array;
  /** [pairs] Uses that never fade, until pins are made of them. */
  #uses: Float64Array | undefined;
  #step = 0;
  #tokens = 0;
  #tokensSinceHalving = 0;

  constructor({ pairs, slots, policy, halveEveryTokens, pin }: GroupOptions) {
    this.slots = slots;
    this.visible = new Int32Array(pairs).fill(NONE);
    this.#loading = new Int32Array(pairs).fill(NONE);
    this.#holders = new Int32Array(slots).fill(NONE);
    for (let slot = slots - 1; slot >= 0; slot--) this.#free.push(slot);
    this.#pinned = new Uint8Array(pairs);
    this.#missedAt = new Float64Array(pairs);
    const usage = new Usage(pairs);
    const pinned = this.#pinned;
    this.usage = usage;
    this.#wanted = new IndexedHeap(pairs, (a, b) =>
      pinned[a] === pinned[b] ? usage.hotter(a, b) : pinned[a] > pinned[b],
    );
    this.#policy = makePolicy(policy, { pairs, slots, usage });
    this.#halveEveryTokens = halveEveryTokens;
    this.#pin = this.#policy.patience === undefined ? undefined : pin;
    if (this.#pin !== undefined) this.#uses = new Float64Array(pairs);
  }

  /** A use of `pair` in a run over so many rows. Whether it lies in a slot. */
  use(pair: number, rows: number): boolean {
    // However many rows a prompt has, it says no more than the tokens between two halvings would.
    this.usage.record(pair, Math.min(1, this.#halveEveryTokens / rows));
    if (this.#uses !== undefined) this.#uses[pair]++;
    if (this.visible[pair] !== NONE) {
      if (this.#pinned[pair] === 0) this.#policy.hit(pair);
      return true;
    }
    this.#missedAt[pair] = this.#step;
    if (this.#loading[pair] === NONE && this.#policy.patience !== undefined) this.#wanted.put(pair);
    return false;
  }

  endStep(rows: number): void {
    this.#step++;
    this.#tokens += rows;
    this.#tokensSinceHalving += Math.min(rows, this.#halveEveryTokens);
    if (this.#tokensSinceHalving >= this.#halveEveryTokens) {
      this.#tokensSinceHalving -= this.#halveEveryTokens;
      this.usage.halve();
      this.#policy.recount();
      this.#wanted.rebuild();
    }
    if (this.#pin === undefined || this.#uses === undefined || this.#tokens < this.#pin.afterTokens) return;
    this.#makePins(this.#uses, this.#pin.share);
    this.#uses = undefined;
  }

  /** The pair that most deserves to be uploaded next, if there is one and a slot can be had for it. */
  candidate(held?: Held): number | undefined {
    const pair = this.#mostWanted();
    if (pair === undefined || this.#free.length > 0) return pair;
    const victim = this.#policy.victim(held);
    if (victim === undefined) return undefined;
    return this.#pinned[pair] === 1 || this.#policy.admits(pair, victim) ? pair : undefined;
  }

  /** Whether `pair` is in no slot, and on its way to none. */
  isAway(pair: number): boolean {
    return this.visible[pair] === NONE && this.#loading[pair] === NONE;
  }

  /** Whether the warm-up says that `pair` is never to leave. */
  isPinned(pair: number): boolean {
    return this.#pinned[pair] === 1;
  }

  /** How many pairs from `first` to `end` − 1 are never to leave. */
  pinned(first: number, end: number): number {
    return this.#pinned.subarray(first, end).reduce((sum, pin) => sum + pin, 0);
  }

  /**
   * Gives `pair` a slot to be uploaded to: a free one, else the policy's victim's, who is gone from then on. Nothing when
   * there is none to be had.
   * @throws InternalError `internal` when the pair has a slot
   */
  begin(pair: number, held?: Held): { readonly slot: number; readonly evicted?: number } | undefined {
    if (!this.isAway(pair)) {
      throw new InternalError(`pair ${pair} was to be uploaded, and has a slot`);
    }
    let evicted: number | undefined;
    let slot = this.#free.pop();
    if (slot === undefined) {
      evicted = this.#policy.victim(held);
      if (evicted === undefined) return undefined;
      slot = this.visible[evicted];
      this.visible[evicted] = NONE;
      this.#policy.remove(evicted);
    }
    this.#wanted.remove(pair);
    this.#loading[pair] = slot;
    this.#holders[slot] = pair;
    return { slot, evicted };
  }

  /** The upload is done: the pair is found in its slot. @throws InternalError `internal` when none was begun */
  commit(pair: number): void {
    const slot = this.#endUpload(pair);
    this.visible[pair] = slot;
    if (this.#pinned[pair] === 0) this.#policy.insert(pair);
  }

  /** The upload has failed: the slot is free, and what lay there is lost. @throws InternalError `internal` when none was begun */
  abort(pair: number): void {
    const slot = this.#endUpload(pair);
    this.#holders[slot] = NONE;
    this.#free.push(slot);
    if (this.#pinned[pair] === 1) this.#wanted.put(pair);
  }

  /** The pair to which `slot` belongs, seen there or not yet. */
  holder(slot: number): number | undefined {
    const pair = this.#holders[slot];
    return pair === NONE ? undefined : pair;
  }

  #endUpload(pair: number): number {
    const slot = this.#loading[pair];
    if (slot === NONE) throw new InternalError(`the upload of pair ${pair} ended, and none had begun`);
    this.#loading[pair] = NONE;
    return slot;
  }

  #mostWanted(): number | undefined {
    const patience = this.#policy.patience ?? 0;
    for (let pair = this.#wanted.peek(); pair !== undefined; pair = this.#wanted.peek()) {
      if (this.#pinned[pair] === 1 || this.#step - this.#missedAt[pair] <= patience) return pair;
      this.#wanted.remove(pair);
    }
    return undefined;
  }

  #makePins(uses: Float64Array, share: number): void {
    const pinned = Int32Array.from(uses, (_, pair) => pair)
      .filter((pair) => uses[pair] > 0)
      .sort((a, b) => uses[b] - uses[a] || a - b)
      // A share that was made of a number of slots is that number again.
      .subarray(0, Math.floor(share * this.slots + 1e-9));
    // The heap's order is of pins too: none may change while their places are looked for.
    for (const pair of pinned) this.#wanted.remove(pair);
    for (const pair of pinned) {
      this.#pinned[pair] = 1;
      if (this.visible[pair] !== NONE) this.#policy.remove(pair);
      else if (this.#loading[pair] === NONE) this.#wanted.put(pair);
    }
    this.#policy.resize(this.slots - pinned.length);
  }
}
