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
   * @returns of the experts that were predicted for it, all and those used
   */
  observe(layer: number, experts: ArrayLike<number>): Accuracy;
}

export interface Accuracy {
  readonly predicted: number;
  readonly used: number;
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
  readonly #used: number;
  readonly #next = new Map<number, Uint32Array>();

  /** @param used experts that a row uses in a layer */
  constructor(used: number) {
    this.#used = used;
  }

  /**
   * What a layer's router said ahead of time.
   * @param scores [rows, experts] such that higher is chosen; ties go to the lower expert
   */
  scored(layer: number, scores: Float32Array, experts: number): void {
    const chosen = new Set<number>();
    const rows = scores.length / experts;
    const order = Array.from({ length: rows }, (_, row) => best(scores.subarray(row * experts, (row + 1) * experts)));
    // Rank by rank, so that of several rows the likeliest come first.
    for (let rank = 0; rank < Math.min(this.#used, experts); rank++) for (const row of order) chosen.add(row[rank]);
    this.#next.set(layer, Uint32Array.from(chosen));
  }

  predict(layer: number): Uint32Array {
    return this.#next.get(layer) ?? NOTHING;
  }

  observe(layer: number, experts: ArrayLike<number>): Accuracy {
    const accuracy = compare(this.predict(layer), new Set(Array.from(experts)));
    this.#next.delete(layer);
    return accuracy;
  }
}

function compare(predicted: Uint32Array, used: ReadonlySet<number>): Accuracy {
  let hits = 0;
  for (const expert of predicted) if (used.has(expert)) hits++;
  return { predicted: predicted.length, used: hits };
}

/** All experts, the highest score first, NaN last. */
function best(scores: Float32Array): Uint32Array {
  const value = (expert: number) => (Number.isNaN(scores[expert]) ? -Infinity : scores[expert]);
  return Uint32Array.from(scores, (_, expert) => expert).sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    return left === right ? a - b : right - left;
  });
}
