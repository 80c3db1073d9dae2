/** A recorded routing given to a model's rows, one token of the trace after the other and over again, whatever the model would choose. */

import { InternalError } from '../errors.ts';
import type { RoutingTrace } from './trace.ts';

/** Ids that are read of a trace at the most: 2^24 of two bytes each are 32 MiB, 43,690 tokens of 48 layers and 8 experts. */
const MOST_IDS = 2 ** 24;

/**
 * The ids of a trace, [tokens, layers, used], of a very long one those of its first tokens.
 * @throws what reading it throws
 */
export async function idsOf(trace: RoutingTrace, mostIds = MOST_IDS): Promise<Uint16Array> {
  const { layers, used, tokens } = trace.shape;
  const count = Math.min(tokens, Math.max(1, Math.floor(mostIds / (layers * used))));
  const block = await trace.read(0, count);
  return block.all;
}

/**
 * How often each expert is used, [layers][experts].
 * @throws what reading the trace throws
 */
export async function usesOf(trace: RoutingTrace): Promise<readonly Float64Array[]> {
  const { layers, experts } = trace.shape;
  const uses = Array.from({ length: layers }, () => new Float64Array(experts));
  for await (const block of trace.blocks()) {
    for (let token = block.first; token < block.first + block.tokens; token++) {
      for (const [layer, counts] of uses.entries()) for (const expert of block.ids(token, layer)) counts[expert]++;
    }
  }
  return uses;
}

export class GivenIds {
  /** [tokens, layers, used] */
  readonly #ids: Uint16Array;
  readonly #used: number;
  /** The model's layers that have experts, each with its place in a token. */
  readonly #places: ReadonlyMap<number, number>;
  readonly #tokens: number;
  #rows = 0;
  /** The token of the run's first row. */
  #first = 0;
  #next = 0;

  /** @param layers the model's layers that have experts, in order */
  constructor(ids: Uint16Array, layers: readonly number[], used: number) {
    this.#ids = ids;
    this.#used = used;
    this.#places = new Map(layers.map((layer, index) => [layer, index * used]));
    this.#tokens = ids.length / (layers.length * used);
    if (!(Number.isInteger(this.#tokens) && this.#tokens > 0)) {
      throw new InternalError(`a routing of ${ids.length} ids was given to ${layers.length} layers of ${used} each`);
    }
  }

  /** Goes on by a run's rows. */
  advance(rows: number): void {
    this.#rows = rows;
    this.#first = this.#next;
    this.#next = (this.#next + rows) % this.#tokens;
  }

  /** [rows · used] Of the rows that it went on by. */
  ids(layer: number): Uint32Array {
    const place = this.#places.get(layer);
    if (place === undefined) throw new InternalError(`layer ${layer} has no experts, and was to be given some`);
    const used = this.#used;
    const stride = this.#places.size * used;
    const ids = new Uint32Array(this.#rows * used);
    for (let row = 0; row < this.#rows; row++) {
      const at = ((this.#first + row) % this.#tokens) * stride + place;
      ids.set(this.#ids.subarray(at, at + used), row * used);
    }
    return ids;
  }
}
