/**
 * Whether drafting pays, by what comes of it: tokens a second with and without, measured in windows of steps. The mode that does
 * better stays; the other one is tried again for a window now and then, the less often the more often it has lost.
 */

/** Steps that a rate is of. */
export const WINDOW_STEPS = 16;
/** Weight of the newest window in a mode's average. */
const NEWEST = 0.5;
/** Windows between two trials of the mode that does worse: at first, and at the most. Each lost trial doubles it. */
const FIRST_WAIT = 4;
const MOST_WAIT = 64;

/** Tokens a second; undefined until a window has been measured. */
export interface GateRates {
  readonly drafting: number | undefined;
  readonly plain: number | undefined;
}

type ModeName = keyof GateRates;

const other = { drafting: 'plain', plain: 'drafting' } as const;

export class ThroughputGate {
  readonly #rates: Record<ModeName, number | undefined> = { drafting: undefined, plain: undefined };
  /** What steps do now, and what they do when nothing is tried. */
  #mode: ModeName = 'drafting';
  #better: ModeName = 'drafting';
  #wait = FIRST_WAIT;
  /** Windows until the other mode is tried. */
  #left = FIRST_WAIT;
  #steps = 0;
  #tokens = 0;
  #elapsedMs = 0;

  /** Whether the next step drafts. */
  get drafts(): boolean {
    return this.#mode === 'drafting';
  }

  get rates(): GateRates {
    return { ...this.#rates };
  }

  /**
   * A step has come.
   * @param step `drafted`: what the gate had said when it was sent; one of the other mode counts as no step of this one
   */
  record({ drafted, tokens, elapsedMs }: StepRecord): void {
    if (drafted !== this.drafts) return;
    this.#steps++;
    this.#tokens += tokens;
    this.#elapsedMs += elapsedMs;
    if (this.#steps < WINDOW_STEPS) return;
    // A clock that stands still measures nothing: everything stays as it is.
    if (this.#elapsedMs > 0) this.#endWindow((this.#tokens * 1000) / this.#elapsedMs);
    this.#steps = this.#tokens = this.#elapsedMs = 0;
  }

  #endWindow(rate: number): void {
    const rates = this.#rates;
    const mode = this.#mode;
    const before = rates[mode];
    rates[mode] = before === undefined ? rate : before + NEWEST * (rate - before);
    const { drafting, plain } = rates;
    if (drafting === undefined || plain === undefined) {
      this.#mode = other[mode];
      return;
    }
    const better = drafting >= plain ? 'drafting' : 'plain';
    if (better !== this.#better) this.#wait = FIRST_WAIT;
    else if (mode !== better) this.#wait = Math.min(MOST_WAIT, 2 * this.#wait);
    const trialEnds = better !== this.#better || mode !== better;
    this.#better = better;
    if (trialEnds) this.#left = this.#wait;
    else if (--this.#left === 0) {
      this.#mode = other[better];
      return;
    }
    this.#mode = better;
  }
}

export interface StepRecord {
  readonly drafted: boolean;
  /** That came of it. */
  readonly tokens: number;
  readonly elapsedMs: number;
}
