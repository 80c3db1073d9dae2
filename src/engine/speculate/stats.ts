/** What drafting came to: counters, and a snapshot of them that is plain data and crosses a worker's port. */

import type { GateRates } from './gate.ts';

/** Of steps of single requests: a step of three requests counts three times. */
export interface SpeculationSnapshot {
  /** With at least one draft. */
  readonly steps: number;
  /** That came of these: 1 to 1 + drafts each. */
  readonly tokens: number;
  /** By position: drafts that were checked, every one before them having come true, and how many of these came true. */
  readonly checked: readonly number[];
  readonly accepted: readonly number[];
  /** Without a draft: nothing was to be guessed from, rows were short, or drafting did not pay. */
  readonly plainSteps: number;
  /** Tokens a second of all requests of a step together, as the gate has measured them last; absent until it has. */
  readonly tokensPerSecond: Partial<GateRates>;
  /** Whether the gate lets steps draft now. */
  readonly drafting: boolean;
}

export class SpeculationStats {
  #steps = 0;
  #tokens = 0;
  #plainSteps = 0;
  readonly #checked: number[];
  readonly #accepted: number[];

  constructor(drafts: number) {
    this.#checked = new Array<number>(drafts).fill(0);
    this.#accepted = new Array<number>(drafts).fill(0);
  }

  /**
   * @param step `drafts`: of the step; `accepted`: how many came true; `tokens`: that came of it, one more than these unless the
   * answer ended before
   */
  add({
    drafts,
    accepted,
    tokens,
  }: {
    readonly drafts: number;
    readonly accepted: number;
    readonly tokens: number;
  }): void {
    if (drafts === 0) {
      this.#plainSteps++;
      return;
    }
    this.#steps++;
    this.#tokens += tokens;
    for (let at = 0; at < drafts && at <= accepted && at < tokens; at++) {
      this.#checked[at]!++;
      if (at < accepted) this.#accepted[at]!++;
    }
  }

  snapshot(gate: Pick<SpeculationSnapshot, 'tokensPerSecond' | 'drafting'>): SpeculationSnapshot {
    return {
      steps: this.#steps,
      tokens: this.#tokens,
      checked: [...this.#checked],
      accepted: [...this.#accepted],
      plainSteps: this.#plainSteps,
      ...gate,
    };
  }

  reset(): void {
    this.#steps = this.#tokens = this.#plainSteps = 0;
    this.#checked.fill(0);
    this.#accepted.fill(0);
  }
}
