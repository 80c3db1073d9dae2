/**
 * What a cache policy decides: which expert gives its slot away. A policy knows pairs of a layer and an expert by number,
 * and of those only the ones that may be given away; `group.ts` knows the slots. No clock and no random number: the same
 * calls give the same decisions.
 */

import type { Usage } from './usage.ts';

export interface Policy {
  /**
   * Steps for which an expert that was missed may still be uploaded. 0: the step of the miss alone; absent: nothing is
   * uploaded after the first fill.
   */
  readonly patience?: number;
  /** A pair has come into a slot. It was not in one. */
  insert(pair: number): void;
  /** A pair has left its slot, or keeps it for good. */
  remove(pair: number): void;
  /** A pair in a slot was used. {@link Usage} has it already. */
  hit(pair: number): void;
  /**
   * The pair that gives its slot away next, or none.
   * @param held those that must not
   */
  victim(held?: (pair: number) => boolean): number | undefined;
  /** Whether `pair` is worth the slot of `victim`. */
  admits(pair: number, victim: number): boolean;
  /** All counts have been halved. */
  recount(): void;
  /** So many slots are its to decide on from now on. */
  resize(slots: number): void;
}

export interface PolicyRoom {
  /** Pairs are 0 … pairs − 1. */
  readonly pairs: number;
  readonly slots: number;
  readonly usage: Usage;
}

/** What all policies that look at recency have in common: whatever was missed lately is let in. */
export const RECENCY_PATIENCE = 1;
