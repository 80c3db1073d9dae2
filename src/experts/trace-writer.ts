/** Writes a routing trace as `trace.ts` reads it, some tokens after the others; in memory are these alone. */

import { InternalError } from '../errors.ts';
import { idBytes, ORDER, type TraceShape } from './trace.ts';

export class TraceWriter {
  readonly shape: Omit<TraceShape, 'tokens'>;
  readonly #write: (bytes: Uint8Array<ArrayBuffer>) => void | Promise<void>;
  #tokens = 0;

  /** @param write takes the bytes of `trace.bin`, in order; they are its own */
  constructor(shape: Omit<TraceShape, 'tokens'>, write: (bytes: Uint8Array<ArrayBuffer>) => void | Promise<void>) {
    this.shape = shape;
    this.#write = write;
  }

  /** Tokens written so far. */
  get tokens(): number {
    return this.#tokens;
  }

  /**
   * Writes the tokens that come next.
   * @param ids [tokens, layers, used] the experts that each token used, the best first
   * @throws InternalError `internal` for anything that the shape does not allow; whatever `write` throws
   */
  async add(ids: ArrayLike<number>): Promise<void> {
    const { experts, used, layers } = this.shape;
    const tokens = ids.length / (layers * used);
    if (!Number.isInteger(tokens)) {
      throw new InternalError(
        `a routing trace was given ${ids.length} ids; expected a multiple of ${layers} layers of ${used}`,
      );
    }
    const width = idBytes(experts);
    const bytes = new Uint8Array(ids.length * width);
    for (let at = 0; at < ids.length; at++) {
      const id = ids[at];
      if (!(id >= 0 && id < experts)) throw new InternalError(`a routing trace was given expert ${id} of ${experts}`);
      bytes[width * at] = id;
      if (width === 2) bytes[2 * at + 1] = id >> 8;
    }
    this.#tokens += tokens;
    if (bytes.length > 0) await this.#write(bytes);
  }

  /** The text of `trace.json`, once all tokens are written. */
  json(): string {
    const { layers, experts, used, model, expertBytes } = this.shape;
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
