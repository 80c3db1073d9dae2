/**
 * Weights that a file keeps in several tensors (codes, scales) as one range of bytes each: a source whose bytes are made, as
 * they are read, out of those of other sources. So what reads weights streams them like any others, and nothing is held twice.
 */

import { CorruptFileError } from '../errors.ts';
import type { ByteSource } from './source.ts';

/** Bytes that are made out of others. */
export interface View {
  readonly bytes: number;
  /** Fills `target`, which lies within the view, with its bytes from `offset` on. @throws SourceError `source` */
  readInto(offset: number, target: Uint8Array): Promise<void>;
}

/** Rows of equal bytes, made some at a time. */
export interface RowsView {
  readonly rows: number;
  readonly rowBytes: number;
  /** Makes `count` rows from `first` on: [count, rowBytes] in `target`. @throws SourceError `source` */
  make(first: number, count: number, target: Uint8Array): Promise<void>;
}

/** Bytes that are made at a time, unless one row has more: what is read for them is held meanwhile. */
const CHUNK_BYTES = 1 << 20;

/** Any range of rows: whole rows are made in place, parts of one on the side. */
export function rowsView({ rows, rowBytes, make }: RowsView): View {
  const most = Math.max(1, Math.floor(CHUNK_BYTES / rowBytes));
  return {
    bytes: rows * rowBytes,
    async readInto(offset, target) {
      const end = offset + target.byteLength;
      for (let at = offset; at < end; ) {
        const row = Math.floor(at / rowBytes);
        const inRow = at - row * rowBytes;
        const whole = Math.min(most, Math.floor((end - at) / rowBytes));
        if (inRow === 0 && whole > 0) {
          const from = at - offset;
          await make(row, whole, target.subarray(from, from + whole * rowBytes));
          at += whole * rowBytes;
          continue;
        }
        const one = new Uint8Array(rowBytes);
        await make(row, 1, one);
        const part = one.subarray(inRow, Math.min(rowBytes, inRow + end - at));
        target.set(part, at - offset);
        at += part.byteLength;
      }
    },
  };
}

/** Puts views one after the other. */
export class ViewSource implements ByteSource {
  readonly name: string;
  readonly #views: View[] = [];
  readonly #starts: number[] = [];
  #size = 0;

  constructor(name: string) {
    this.name = name;
  }

  get size(): number {
    return this.#size;
  }

  /** Adds a view, and returns where it begins. */
  add(view: View): number {
    const start = this.#size;
    this.#views.push(view);
    this.#starts.push(start);
    this.#size += view.bytes;
    return start;
  }

  async readInto(offset: number, target: Uint8Array): Promise<void> {
    const end = offset + target.byteLength;
    if (offset < 0 || end > this.#size) {
      throw new CorruptFileError(`${this.name}: wanted bytes ${offset} to ${end}, but it has only ${this.#size}`);
    }
    for (let at = offset; at < end; ) {
      const index = this.#viewAt(at);
      const start = this.#starts[index] as number;
      const view = this.#views[index] as View;
      const length = Math.min(end, start + view.bytes) - at;
      await view.readInto(at - start, target.subarray(at - offset, at - offset + length));
      at += length;
    }
  }

  /** The last view that begins at `offset` or before. */
  #viewAt(offset: number): number {
    let [low, high] = [0, this.#starts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.#starts[middle] as number) <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** What it is made of belongs to others. */
  async close(): Promise<void> {}
}
