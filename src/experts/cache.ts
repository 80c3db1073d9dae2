/**
 * Answers "where is expert (layer, e)?": the expert cache of a device that holds some experts of some layers in slots. It
 * decides and remembers, and moves no bytes: who runs the model looks up, says what was used, and uploads what the cache
 * asks for: `candidate` → `begin` → copy → `commit`. An expert is computed elsewhere until its upload is committed.
 */

import { InternalError } from '../errors.ts';
import { Group, type Held, type Pinning } from './group.ts';
import type { PolicyName } from './policies.ts';

export type { Pinning } from './group.ts';

/**
 * Tokens after which counts of uses are halved. Texts change what is hot: of 8 to 128 tokens, 16 lose least where a cache is
 * small or uploads are many, and next to nothing where few uploads serve a large one (`docs/experts.md`).
 */
export const HALVE_EVERY_TOKENS = 16;

/** Slots side by side (a slab) that serve some layers. */
export interface SlotGroup {
  /** Ascending. A layer is in at most one group. */
  readonly layers: readonly number[];
  readonly slots: number;
}

export interface ExpertCacheOptions {
  readonly policy: PolicyName;
  /** Experts of each layer. */
  readonly experts: number;
  readonly groups: readonly SlotGroup[];
  /** What is known of how often experts are used: which lie in the slots at first. Absent: the same number of every layer. */
  readonly uses?: (layer: number, expert: number) => number;
  readonly pin?: Pinning;
  readonly halveEveryTokens?: number;
}

/** Tokens after which the hottest experts are pinned, where some are to be. */
export const PIN_AFTER_TOKENS = 256;

export interface ExpertId {
  readonly layer: number;
  readonly expert: number;
}

/** An upload that has begun. */
export interface Upload extends ExpertId {
  /** Index into the cache's groups. */
  readonly group: number;
  /** Of the group. */
  readonly slot: number;
  /** What lay there, and is no longer to be found. */
  readonly evicted?: ExpertId;
}

/** Whether an expert must keep its slot for now, because something that was recorded reads it. */
export type HeldExpert = (layer: number, expert: number) => boolean;

interface Place {
  readonly group: number;
  /** The number of the layer's expert 0 in its group. */
  readonly first: number;
}

export class ExpertCache {
  /** Of all groups. */
  readonly slots: number;
  readonly experts: number;
  readonly groups: readonly SlotGroup[];
  readonly #groups: readonly Group[];
  readonly #places = new Map<number, Place>();
  readonly #uses: ExpertCacheOptions['uses'];

  /** @throws InternalError `internal` for a layer in two groups, and for a group without layers or slots */
  constructor({ policy, experts, groups, uses, pin, halveEveryTokens = HALVE_EVERY_TOKENS }: ExpertCacheOptions) {
    this.experts = experts;
    this.groups = groups;
    this.slots = groups.reduce((sum, { slots }) => sum + slots, 0);
    this.#uses = uses;
    for (const [group, { layers, slots }] of groups.entries()) {
      if (layers.length === 0 || !(Number.isInteger(slots) && slots > 0)) {
        throw new InternalError(`group ${group} of the expert cache has ${layers.length} layers and ${slots} slots`);
      }
      for (const [index, layer] of layers.entries()) {
        if (this.#places.has(layer)) throw new InternalError(`layer ${layer} is in two groups of the expert cache`);
        this.#places.set(layer, { group, first: index * experts });
      }
    }
    this.#groups = groups.map(
      ({ layers, slots }) => new Group({ pairs: layers.length * experts, slots, policy, halveEveryTokens, pin }),
    );
  }

  /** The slot of its layer's group in which an expert lies, or nothing. Changes nothing. */
  lookup(layer: number, expert: number): number | undefined {
    const slot = this.table(layer)?.[expert] ?? -1;
    return slot < 0 ? undefined : slot;
  }

  /** Whether an expert is in no slot of its layer's group, and on its way to none. */
  isAway(layer: number, expert: number): boolean {
    const { group, first } = this.#place(layer);
    return this.#groups[group].isAway(first + expert);
  }

  /** How often an expert was used lately: a count that fades. */
  usesOf(layer: number, expert: number): number {
    const { group, first } = this.#place(layer);
    return this.#groups[group].usage.counts[first + expert];
  }

  /** [experts] The slots of a layer's experts, −1 for those in none; always as things are. Nothing for a layer without slots. */
  table(layer: number): Readonly<Int32Array> | undefined {
    const place = this.#places.get(layer);
    return place === undefined
      ? undefined
      : this.#groups[place.group].visible.subarray(place.first, place.first + this.experts);
  }

  /** The group of a layer, or nothing for a layer without slots. */
  groupOf(layer: number): number | undefined {
    return this.#places.get(layer)?.group;
  }

  /**
   * Says that a step has used experts of a layer, hits and misses alike.
   * @param experts [picks] of all rows, in any number
   * @param rows of the step
   * @returns how many of the picks were hits
   * @throws InternalError `internal` for a layer without slots, or an expert that there is not
   */
  touch(layer: number, experts: ArrayLike<number>, rows = 1): number {
    const { group, first } = this.#place(layer);
    let hits = 0;
    for (let index = 0; index < experts.length; index++) {
      if (this.#groups[group].use(first + this.#checked(layer, experts[index]), rows)) hits++;
    }
    return hits;
  }

  /** Experts of a layer that keep their slots, or get some, for good: none before the warm-up is over. */
  pinsOf(layer: number): number {
    const place = this.#places.get(layer);
    if (place === undefined) return 0;
    return this.#groups[place.group].pinned(place.first, place.first + this.experts);
  }

  /** Says that a run of the graph over so many rows has ended. */
  endStep(rows = 1): void {
    for (const group of this.#groups) group.endStep(rows);
  }

  /**
   * Begins the uploads that fill all slots before the first token, the coldest first: the hottest by `uses`, else the first
   * experts of each layer. Each is to be committed or aborted. Of use once.
   */
  fill(): readonly Upload[] {
    return this.groups.flatMap((group) => this.#firstOf(group).map((id) => this.begin(id) as Upload));
  }

  /** The expert to upload next, or nothing when no upload is worth it, or no slot can be had. Changes nothing. */
  candidate(held?: HeldExpert): ExpertId | undefined {
    let best: { readonly group: number; readonly pair: number } | undefined;
    for (let group = 0; group < this.#groups.length; group++) {
      const pair = this.#groups[group].candidate(this.#heldOf(group, held));
      if (pair === undefined) continue;
      if (best === undefined || this.#worth(group, pair) > this.#worth(best.group, best.pair)) best = { group, pair };
    }
    return best === undefined ? undefined : this.#idOf(best.group, best.pair);
  }

  /**
   * Gives an expert a slot: a free one, or the policy's victim's, who is not found from then on. The expert itself is found
   * there after {@link commit}. Nothing when every slot is held or never given away.
   * @throws InternalError `internal` when the expert has a slot, or is on its way to one
   */
  begin({ layer, expert }: ExpertId, held?: HeldExpert): Upload | undefined {
    const { group, first } = this.#place(layer);
    const begun = this.#groups[group].begin(first + this.#checked(layer, expert), this.#heldOf(group, held));
    if (begun === undefined) return undefined;
    const { slot, evicted } = begun;
    return { layer, expert, group, slot, evicted: evicted === undefined ? undefined : this.#idOf(group, evicted) };
  }

  /** The expert's weights are in its slot. @throws InternalError `internal` when no upload of it was begun */
  commit({ layer, expert }: ExpertId): void {
    const { group, first } = this.#place(layer);
    this.#groups[group].commit(first + this.#checked(layer, expert));
  }

  /** The upload has failed: its slot is free again. @throws InternalError `internal` when no upload of it was begun */
  abort({ layer, expert }: ExpertId): void {
    const { group, first } = this.#place(layer);
    this.#groups[group].abort(first + this.#checked(layer, expert));
  }

  /** The expert to which a slot belongs, found there or on its way. */
  holder(group: number, slot: number): ExpertId | undefined {
    const pair = this.#groups[group].holder(slot);
    return pair === undefined ? undefined : this.#idOf(group, pair);
  }

  /** Between groups the hotter one goes first, and what is to be pinned before all. */
  #worth(group: number, pair: number): number {
    return this.#groups[group].isPinned(pair) ? Infinity : this.#groups[group].usage.counts[pair];
  }

  #firstOf({ layers, slots }: SlotGroup): ExpertId[] {
    const uses = this.#uses;
    const most = Math.min(slots, layers.length * this.experts);
    if (uses === undefined) {
      const each = (index: number) => Math.floor(most / layers.length) + (index < most % layers.length ? 1 : 0);
      return layers.flatMap((layer, index) => Array.from({ length: each(index) }, (_, expert) => ({ layer, expert })));
    }
    return layers
      .flatMap((layer) => Array.from({ length: this.experts }, (_, expert) => ({ layer, expert })))
      .map((id) => ({ id, count: uses(id.layer, id.expert) }))
      .sort((a, b) => b.count - a.count)
      .slice(0, most)
      .reverse()
      .map(({ id }) => id);
  }

  #place(layer: number): Place {
    const place = this.#places.get(layer);
    if (place === undefined) throw new InternalError(`layer ${layer} has no slots in the expert cache`);
    return place;
  }

  #checked(layer: number, expert: number): number {
    if (Number.isInteger(expert) && expert >= 0 && expert < this.experts) return expert;
    throw new InternalError(`layer ${layer} was said to have used expert ${expert} of ${this.experts}`);
  }

  #idOf(group: number, pair: number): ExpertId {
    return {
      layer: this.groups[group].layers[Math.floor(pair / this.experts)],
      expert: pair % this.experts,
    };
  }

  #heldOf(group: number, held: HeldExpert | undefined): Held | undefined {
    if (held === undefined) return undefined;
    const { layers } = this.groups[group];
    return (pair) => held(layers[Math.floor(pair / this.experts)], pair % this.experts);
  }
}
