/**
 * Experts that are brought to slots because a predictor names them, before any that the policy would bring. Which expert gives
 * its slot away stays the policy's to say, but for those that are named themselves. What a step's layers use and what is named
 * for them is gathered while it runs, and counts when it is over.
 */

import type { ExpertCache, ExpertId, Upload } from './cache.ts';
import { type Accuracy, type Predictor, PreviousStep, RouterAhead } from './predict.ts';

const predictors = { previous: () => new PreviousStep(), gate: () => new RouterAhead() } as const satisfies Readonly<
  Record<string, () => Predictor>
>;

export type PredictorName = keyof typeof predictors;

/** How experts are foreseen, if they are: `previous`: as in the step before; `gate`: by the router, on the layer before. */
export type PrefetchName = 'off' | PredictorName;

export const prefetchNames = ['off', 'previous', 'gate'] as const satisfies readonly PrefetchName[];

export class Prefetch {
  readonly #cache: ExpertCache;
  readonly #predictor: Predictor;
  readonly #layers: readonly number[];
  /** By layer, of the step under way. */
  readonly #used = new Map<number, Uint32Array>();

  constructor(cache: ExpertCache, predictor: PredictorName) {
    this.#cache = cache;
    this.#predictor = predictors[predictor]();
    this.#layers = cache.groups.flatMap(({ layers }) => layers);
  }

  /** A layer of the step has used these, [picks] of all rows. */
  used(layer: number, experts: ArrayLike<number>): void {
    this.#used.set(layer, Uint32Array.from(experts));
  }

  /** These were named for a layer of the step, [rows · ranks], a row's best first. */
  named(layer: number, experts: ArrayLike<number>, ranks: number): void {
    this.#predictor.named?.(layer, experts, ranks);
  }

  /** The step is over. @returns by layer how well it was foreseen */
  endStep(): ReadonlyMap<number, Accuracy> {
    const found = new Map([...this.#used].map(([layer, experts]) => [layer, this.#predictor.observe(layer, experts)]));
    this.#used.clear();
    return found;
  }

  /**
   * Begins the upload of an expert that is named and has no slot, of several the one used most. Nothing when there is none, or no
   * slot to be had: those that are named keep theirs.
   */
  begin(): Upload | undefined {
    const id = this.#wanted();
    return id && this.#cache.begin(id, (layer, expert) => this.#predictor.predict(layer).includes(expert));
  }

  #wanted(): ExpertId | undefined {
    let best: ExpertId | undefined;
    let most = -1;
    for (const layer of this.#layers) {
      for (const expert of this.#predictor.predict(layer)) {
        if (!this.#cache.isAway(layer, expert)) continue;
        const uses = this.#cache.usesOf(layer, expert);
        if (uses > most) [best, most] = [{ layer, expert }, uses];
      }
    }
    return best;
  }
}
