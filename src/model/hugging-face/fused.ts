/**
 * Tensors in which a checkpoint holds several of GGUF's: experts' gate and up in one, row by row in one of two orders, and
 * matrices that are stored with rows and columns exchanged. What each part is, is a view of the whole.
 */

import { rowsView, type View } from '../../format/views.ts';
import type { Stored } from './repack.ts';

/** How such a tensor is made; a row of a family's dialect. */
export interface Fused {
  /** GGUF's names of its parts, N being the layer: `blk.N.ffn_gate_exps.weight`. */
  readonly parts: readonly string[];
  /** Rows of an expert: all of the first part and then those of the next, or one of each in turn. */
  readonly rows: 'halves' | 'turns';
  /** An expert's matrix is stored [columns, rows]. Codes of a quantised one are never. */
  readonly transposed?: true;
}

/** Matrices of an expert each, as they are computed with: [experts, rows, columns]. */
export interface StackSize {
  readonly experts: number;
  readonly rows: number;
  readonly columns: number;
}

/** A tensor's bytes as they are. */
export function plainView({ tensor, source }: Stored): View {
  return {
    bytes: tensor.bytes,
    readInto: (offset, target) => source.readInto(tensor.offset + offset, target),
  };
}

/** The rows of one of `count` parts of each expert. */
export function partView(
  whole: View,
  size: StackSize,
  { part, count, order }: { readonly part: number; readonly count: number; readonly order: Fused['rows'] },
): View {
  const { experts, rows } = size;
  const rowBytes = whole.bytes / (experts * rows);
  const own = rows / count;
  /** Rows `first` … of the part, all of one expert, whose first row of all is `from`. */
  const read = async (from: number, first: number, wanted: number, target: Uint8Array) => {
    if (order === 'halves') {
      await whole.readInto((from + part * own + first) * rowBytes, target);
      return;
    }
    const all = new Uint8Array(((wanted - 1) * count + 1) * rowBytes);
    await whole.readInto((from + first * count + part) * rowBytes, all);
    for (let row = 0; row < wanted; row++) {
      target.set(all.subarray(row * count * rowBytes, (row * count + 1) * rowBytes), row * rowBytes);
    }
  };
  return rowsView({
    rows: experts * own,
    rowBytes,
    async make(first, wanted, target) {
      for (let at = 0; at < wanted; ) {
        const expert = Math.floor((first + at) / own);
        const row = first + at - expert * own;
        const here = Math.min(wanted - at, own - row);
        await read(expert * rows, row, here, target.subarray(at * rowBytes, (at + here) * rowBytes));
        at += here;
      }
    },
  });
}

/** The same matrices with rows and columns exchanged, of values of 2 or 4 bytes. */
export function transposedView(stored: Stored, { experts, rows, columns }: StackSize, recent: RecentMatrices): View {
  const { tensor, source } = stored;
  const width = tensor.bytes / (experts * rows * columns);
  const matrixBytes = rows * columns * width;
  return rowsView({
    rows: experts * rows,
    rowBytes: columns * width,
    async make(first, count, target) {
      let to = 0;
      for (let at = first; at < first + count; at++) {
        const expert = Math.floor(at / rows);
        const row = at - expert * rows;
        const matrix = await recent.get(`${tensor.name} ${expert}`, async () => {
          const bytes = new Uint8Array(matrixBytes);
          await source.readInto(tensor.offset + expert * matrixBytes, bytes);
          return bytes;
        });
        for (let column = 0; column < columns; column++) {
          const from = (column * rows + row) * width;
          for (let byte = 0; byte < width; byte++) target[to++] = matrix[from + byte] as number;
        }
      }
    },
  });
}

/** Matrices read last: neighbouring pieces of a weight need the same one, and no more than a few are held at once. */
export class RecentMatrices {
  readonly #most: number;
  readonly #held = new Map<string, Promise<Uint8Array>>();

  constructor(most = 4) {
    this.#most = most;
  }

  get(name: string, read: () => Promise<Uint8Array>): Promise<Uint8Array> {
    const found = this.#held.get(name) ?? read();
    this.#held.delete(name);
    this.#held.set(name, found);
    // What could not be read is asked for again.
    found.catch(() => this.#held.delete(name));
    for (const oldest of this.#held.keys()) {
      if (this.#held.size <= this.#most) break;
      this.#held.delete(oldest);
    }
    return found;
  }
}
