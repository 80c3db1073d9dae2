/** Writes a routing trace as `trace.ts` reads it, step after step; in memory is one step at a time. */

import { InternalError } from '../errors.ts';
import { idBytes, ORDER, type TraceShape } from './trace.ts';

export class TraceWriter {
  readonly #shape: Omit<TraceShape, 'tokens'>;
  readonly #write: (bytes: Uint8Array<ArrayBuffer>) => void | Promise<void>;
  #tokens = 0;

  /** @param write takes the bytes of `trace.bin`, in order; they are its own */
  constructor(shape: Omit<TraceShape, 'tokens'>, write: (bytes: Uint8Array<ArrayBuffer>) => void | Promise<void>) {
    this.#shape = shape;
    this.#write = write;
  }

  /**
   * Writes the tokens of one run of the graph.
   * @param layers by layer, [rows, used] the experts that each row used, the best first
   * @throws InternalError `internal` for anything that the shape does not allow; whatever `write` throws
   */
  async step(layers: readonly ArrayLike<number>[]): Promise<void> {
    const { experts, used, layers: expected } = this.#shape;
    const rows = (layers[0]?.length ?? 0) / used;
    if (layers.length !== expected || !Number.isInteger(rows) || layers.some(({ length }) => length !== rows * used)) {
      const found = layers.map(({ length }) => length).join(', ');
      throw new InternalError(
        `a step of a routing trace gave lists of ${found} ids; expected ${expected} of the same multiple of ${used}`,
      );
    }
    const width = idBytes(experts);
    const bytes = new Uint8Array(rows * expected * used * width);
    let at = 0;
    for (let row = 0; row < rows; row++) {
      for (const ids of layers) {
        for (let rank = 0; rank < used; rank++) {
          const id = ids[row * used + rank];
          if (!(id >= 0 && id < experts))
            throw new InternalError(`a routing trace was given expert ${id} of ${experts}`);
          bytes[at++] = id;
          if (width === 2) bytes[at++] = id >> 8;
        }
      }
    }
    this.#tokens += rows;
    if (bytes.length > 0) await this.#write(bytes);
  }

  /** The text of `trace.json`, once all tokens are written. */
  shape(): string {
    const { layers, experts, used, model, expertBytes } = this.#shape;
    const width = idBytes(experts);
    const shape = {
      layers,
      experts,
      used,
      tokens: this.#tokens,
      dtype: width === 1 ? 'uint8' : 'uint16',
      ...(width === 1 ? {} : { bytes: width }),
      order: ORDER,
      model,
      expertBytes,
    };
    return `${JSON.stringify(shape, null, 1)}\n`;
  }
}
