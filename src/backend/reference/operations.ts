/**
 * The arithmetic of every operation but the mixture of experts, as plainly as it can be written: values are f32, sums
 * are f64, each row by itself and always in the same order, so no row's result depends on its neighbours.
 */

import { type RopeTable, ropeAngles } from '../../model/rope.ts';
import type { Activation } from '../../model/spec.ts';
import { PAGE_ROWS } from '../backend.ts';

/** Row t of the output is the weight's row `tokens[t]`; weight [vocabulary, width], output [T, width]. */
export function embed(weight: Float32Array, tokens: Int32Array, width: number): Float32Array {
  const output = new Float32Array(tokens.length * width);
  for (let t = 0; t < tokens.length; t++) {
    const start = tokens[t] * width;
    output.set(weight.subarray(start, start + width), t * width);
  }
  return output;
}

/**
 * RMS norm over groups of `group` elements: x / √(mean(x²) + epsilon) · weight. Input and output [T, width]; the weight
 * has one value for each element of a group.
 */
export function norm(input: Float32Array, weight: Float32Array, group: number, epsilon: number): Float32Array {
  const output = new Float32Array(input.length);
  for (let start = 0; start < input.length; start += group) {
    let squares = 0;
    for (let i = 0; i < group; i++) squares += input[start + i] ** 2;
    const scale = 1 / Math.sqrt(squares / group + epsilon);
    for (let i = 0; i < group; i++) output[start + i] = input[start + i] * scale * weight[i];
  }
  return output;
}

/** A matrix inside a larger array: [rows, columns] from `offset` on (an expert of a stack). */
export interface Matrix {
  readonly data: Float32Array;
  readonly offset: number;
  readonly rows: number;
  readonly columns: number;
}

/** output[t] = matrix · input[t] (+ bias). Input [T, columns], output [T, rows], bias [rows]. */
export function linear(input: Float32Array, matrix: Matrix, bias?: Float32Array): Float32Array {
  const { data, offset, rows, columns } = matrix;
  const count = input.length / columns;
  const output = new Float32Array(count * rows);
  // Widened once, because each value meets every row. The matrix's row is the outer loop, so that it is read once.
  const wide = Float64Array.from(input);
  for (let row = 0; row < rows; row++) {
    const start = offset + row * columns;
    for (let t = 0; t < count; t++) {
      output[t * rows + row] = dot(data, start, wide, t * columns, columns) + (bias === undefined ? 0 : bias[row]);
    }
  }
  return output;
}

/** Four sums side by side, because each addition waits for the one before it; their order is part of the result. */
function dot(a: Float32Array, aStart: number, b: Float64Array, bStart: number, length: number): number {
  let s0 = 0;
  let s1 = 0;
  let s2 = 0;
  let s3 = 0;
  let i = 0;
  for (; i + 3 < length; i += 4) {
    s0 += a[aStart + i] * b[bStart + i];
    s1 += a[aStart + i + 1] * b[bStart + i + 1];
    s2 += a[aStart + i + 2] * b[bStart + i + 2];
    s3 += a[aStart + i + 3] * b[bStart + i + 3];
  }
  for (; i < length; i++) s0 += a[aStart + i] * b[bStart + i];
  return s0 + s1 + (s2 + s3);
}

/** Rotates the first `dimensions` elements of each head by the row's position. Input and output [T, heads·headDim]. */
export function rope(
  input: Float32Array,
  positions: Int32Array,
  {
    table,
    headDim,
    pairing,
  }: { readonly table: RopeTable; readonly headDim: number; readonly pairing: 'adjacent' | 'half' },
): Float32Array {
  const output = Float32Array.from(input);
  const width = input.length / positions.length;
  const pairs = table.inverseFrequencies.length;
  const cos = new Float32Array(pairs);
  const sin = new Float32Array(pairs);
  positions.forEach((position, t) => {
    ropeAngles(table, position, { cos, sin, offset: 0 });
    for (let head = t * width; head < (t + 1) * width; head += headDim) {
      for (let pair = 0; pair < pairs; pair++) {
        const first = head + (pairing === 'adjacent' ? 2 * pair : pair);
        const second = first + (pairing === 'adjacent' ? 1 : pairs);
        output[first] = input[first] * cos[pair] - input[second] * sin[pair];
        output[second] = input[first] * sin[pair] + input[second] * cos[pair];
      }
    }
  });
  return output;
}

/** One layer's keys and values: [pages · PAGE_ROWS, kvHeads·headDim] and [pages · PAGE_ROWS, kvHeads·valueDim]. */
export interface LayerCache {
  readonly keys: Float32Array;
  readonly values: Float32Array;
}

/** Which rows attend where: the parts of a `Step` that attention needs. */
export interface AttentionRows {
  readonly positions: Int32Array;
  readonly sequences: Int32Array;
  readonly pageTables: readonly Int32Array[];
}

export interface AttentionShape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly scale: number;
}

/**
 * Writes every row's key and value to the cache, then lets each row's queries attend to positions 0 … its own of its own
 * sequence. Query [T, heads·headDim], key [T, kvHeads·headDim], value [T, kvHeads·valueDim] → [T, heads·valueDim].
 */
export function attention(
  { query, key, value }: { readonly query: Float32Array; readonly key: Float32Array; readonly value: Float32Array },
  cache: LayerCache,
  rows: AttentionRows,
  shape: AttentionShape,
): Float32Array {
  const { heads, kvHeads, headDim, valueDim, scale } = shape;
  const keyWidth = kvHeads * headDim;
  const valueWidth = kvHeads * valueDim;
  const place = (t: number, position: number): number =>
    rows.pageTables[rows.sequences[t]][Math.floor(position / PAGE_ROWS)] * PAGE_ROWS + (position % PAGE_ROWS);
  rows.positions.forEach((position, t) => {
    cache.keys.set(key.subarray(t * keyWidth, (t + 1) * keyWidth), place(t, position) * keyWidth);
    cache.values.set(value.subarray(t * valueWidth, (t + 1) * valueWidth), place(t, position) * valueWidth);
  });
  const output = new Float32Array(rows.positions.length * heads * valueDim);
  rows.positions.forEach((last, t) => {
    const places = Int32Array.from({ length: last + 1 }, (_, position) => place(t, position));
    const scores = new Float64Array(last + 1);
    const mixed = new Float64Array(valueDim);
    for (let head = 0; head < heads; head++) {
      const kvHead = Math.floor((head * kvHeads) / heads);
      const from = (t * heads + head) * headDim;
      places.forEach((at, position) => {
        const start = at * keyWidth + kvHead * headDim;
        let sum = 0;
        for (let i = 0; i < headDim; i++) sum += query[from + i] * cache.keys[start + i];
        scores[position] = sum * scale;
      });
      softmax(scores);
      mixed.fill(0);
      places.forEach((at, position) => {
        const start = at * valueWidth + kvHead * valueDim;
        for (let i = 0; i < valueDim; i++) mixed[i] += scores[position] * cache.values[start + i];
      });
      output.set(mixed, (t * heads + head) * valueDim);
    }
  });
  return output;
}

/** In place: e^(x − max) over its sum. A NaN stays one. */
export function softmax(scores: Float64Array): void {
  let max = -Infinity;
  for (const score of scores) max = Math.max(max, score);
  let sum = 0;
  for (let i = 0; i < scores.length; i++) {
    scores[i] = Math.exp(scores[i] - max);
    sum += scores[i];
  }
  for (let i = 0; i < scores.length; i++) scores[i] /= sum;
}

/** output = act(gate) ⊙ up, all [T, inner]. */
export function glu(gate: Float32Array, up: Float32Array, activation: Activation): Float32Array {
  const act = activations[activation];
  return gate.map((value, i) => act(value) * up[i]);
}

const activations: Readonly<Record<Activation, (x: number) => number>> = {
  silu: (x) => x / (1 + Math.exp(-x)),
};

/** left + right, element by element. */
export function add(left: Float32Array, right: Float32Array): Float32Array {
  return left.map((value, i) => value + right[i]);
}

/** Each row of `left` followed by that of `right`. @param widths of these */
export function concat(
  left: Float32Array,
  right: Float32Array,
  [first, second]: readonly [number, number],
): Float32Array {
  const output = new Float32Array(left.length + right.length);
  for (let row = 0; row * first < left.length; row++) {
    const at = row * (first + second);
    output.set(left.subarray(row * first, (row + 1) * first), at);
    output.set(right.subarray(row * second, (row + 1) * second), at + first);
  }
  return output;
}

/** The rows of [T, width] that `wanted` names. */
export function gather(input: Float32Array, wanted: Int32Array, width: number): Float32Array {
  const output = new Float32Array(wanted.length * width);
  for (let i = 0; i < wanted.length; i++) {
    const start = wanted[i] * width;
    output.set(input.subarray(start, start + width), i * width);
  }
  return output;
}
