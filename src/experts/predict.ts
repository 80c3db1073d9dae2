/**
 * Which experts a layer will use, said before its router has run, so that they can be on their way. A prediction is never
 * relied on: it chooses uploads, and how often it was right is counted.
 */

export interface Predictor {
  /** The experts that `layer` is likely to use next, the likeliest first; none when nothing is known. Valid until `observe`. */
  predict(layer: number): Uint32Array;
  /**
   * What `layer` has used in this step.
   * @param experts [picks] of all rows
   * @returns how well that was foreseen
   */
  observe(layer: number, experts: ArrayLike<number>): Accuracy;
  /** What was named for `layer` in this step, where that is not for the predictor to find: [rows · ranks], a row's best first. */
  named?(layer: number, experts: ArrayLike<number>, ranks: number): void;
}

/** Different experts: all that were named, all that were used, and those that were both. Recall is `right` over `used`. */
export interface Accuracy {
  readonly named: number;
  readonly used: number;
  readonly right: number;
}

const NOTHING = new Uint32Array(0);

/** What each layer used in the step before. */
export class PreviousStep implements Predictor {
  readonly #last = new Map<number, Uint32Array>();

  predict(layer: number): Uint32Array {
    return this.#last.get(layer) ?? NOTHING;
  }

  observe(layer: number, experts: ArrayLike<number>): Accuracy {
    const used = new Set(Array.from(experts));
    const accuracy = compare(this.predict(layer), used);
    this.#last.set(layer, Uint32Array.from(used));
    return accuracy;
  }
}

/**
 * What the router of a layer chooses when it is given the hidden state of the layer before it, which differs little from
 * the one that it will get (Eliseev, Mazur: "Fast inference of mixture-of-experts language models with offloading", 2023).
 */
export class RouterAhead implements Predictor {
  readonly #next = new Map<number, Uint32Array>();

  named(layer: number, experts: ArrayLike<number>, ranks: number): void {
    const chosen = new Set<number>();
    // Rank by rank, so that of several rows the likeliest come first.
    for (let rank = 0; rank < ranks; rank++)
      for (let at = rank; at < experts.length; at += ranks) chosen.add(experts[at]);
    this.#next.set(layer, Uint32Array.from(chosen));
  }

  predict(layer: number): Uint32Array {
    return this.#next.get(layer) ?? NOTHING;
  }

  observe(layer: number, experts: ArrayLike<number>): Accuracy {
    return compare(this.predict(layer), new Set(Array.from(experts)));
  }
}

function compare(named: Uint32Array, used: ReadonlySet<number>): Accuracy {
  let right = 0;
  for (const expert of named) if (used.has(expert)) right++;
  return { named: named.length, used: used.size, right };
}
