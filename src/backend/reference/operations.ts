/**
 * The arithmetic of every operation but the mixture of experts, as plainly as it can be written: values are f32, sums
 * are f64, each row by itself and always in the same order, so no row's result depends on its neighbours.
 */

import { firstVisible, temperatureAt } from '../../model/attention.ts';
import { type RopeTable, ropeAngles } from '../../model/rope.ts';
import type { Activation, ClampedSwiglu, GateActivation, ReachSpec, TemperatureSpec } from '../../model/spec.ts';
import { PAGE_ROWS } from '../backend.ts';

/** Row t of the output is the weight's row `tokens[t]`, times `factor`; weight [vocabulary, width], output [T, width]. */
export function embed(weight: Float32Array, tokens: Int32Array, width: number, factor = 1): Float32Array {
  const output = new Float32Array(tokens.length * width);
  for (let t = 0; t < tokens.length; t++) {
    const start = tokens[t] * width;
    output.set(weight.subarray(start, start + width), t * width);
  }
  return factor === 1 ? output : scale(output, factor);
}

/**
 * RMS norm over groups of `group` elements: x / √(mean(x²) + epsilon) · weight. Input and output [T, width]; the weight
 * has one value for each element of a group, and is 1 where there is none. The last `rest` elements of a row are in no group
 * and stay as they are.
 */
export function norm(
  input: Float32Array,
  weight: Float32Array | undefined,
  group: number,
  epsilon: number,
  row: { readonly width: number; readonly rest: number } = { width: group, rest: 0 },
): Float32Array {
  const output = Float32Array.from(input);
  for (let first = 0; first < input.length; first += row.width) {
    for (let start = first; start < first + row.width - row.rest; start += group) {
      let squares = 0;
      for (let i = 0; i < group; i++) squares += input[start + i] ** 2;
      const factor = 1 / Math.sqrt(squares / group + epsilon);
      for (let i = 0; i < group; i++) {
        output[start + i] = input[start + i] * factor * (weight === undefined ? 1 : weight[i]);
      }
    }
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

/**
 * A product for each head, with matrix h of the weight [heads, rows, columns]; the last `rest` elements of a head go on as they
 * are. Input [T, heads·(columns + rest)], output [T, heads·(rows + rest)].
 */
export function headLinear(
  input: Float32Array,
  weight: Float32Array,
  shape: { readonly heads: number; readonly width: number; readonly outputWidth: number; readonly rest: number },
): Float32Array {
  const { heads, width, outputWidth, rest } = shape;
  const [from, to] = [width / heads, outputWidth / heads];
  const [columns, rows] = [from - rest, to - rest];
  const output = new Float32Array((input.length / width) * outputWidth);
  for (let head = 0; head * from < input.length; head++) {
    const x = input.subarray(head * from, (head + 1) * from);
    const offset = (head % heads) * rows * columns;
    output.set(linear(x.subarray(0, columns), { data: weight, offset, rows, columns }), head * to);
    output.set(x.subarray(columns), head * to + rows);
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

/** Rotates `dimensions` elements of each head, from element `from` on, by the row's position. Input and output [T, heads·headDim]. */
export function rope(
  input: Float32Array,
  positions: Int32Array,
  {
    table,
    headDim,
    pairing,
    from = 0,
  }: {
    readonly table: RopeTable;
    readonly headDim: number;
    readonly pairing: 'adjacent' | 'half';
    readonly from?: number;
  },
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
        const first = head + from + (pairing === 'adjacent' ? 2 * pair : pair);
        const second = first + (pairing === 'adjacent' ? 1 : pairs);
        output[first] = input[first] * cos[pair] - input[second] * sin[pair];
        output[second] = input[first] * sin[pair] + input[second] * cos[pair];
      }
    }
  });
  return output;
}

/**
 * One layer's keys and values: [pages · PAGE_ROWS, kvHeads·headDim] and [pages · PAGE_ROWS, kvHeads·valueDim]; no values
 * where each is the beginning of its key.
 */
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
  readonly reach?: ReachSpec;
  readonly temperature?: TemperatureSpec;
}

/**
 * Writes every row's key and value to the cache, then lets each row's queries attend to positions 0 … its own of its own
 * sequence, as far as the reach goes. A head's sink is a score more in the softmax, without a value. Query
 * [T, heads·headDim], key [T, kvHeads·headDim], value [T, kvHeads·valueDim], sinks [heads] → [T, heads·valueDim]. Without a
 * value it is the first `valueDim` elements of its key.
 */
export function attention(
  {
    query,
    key,
    value,
  }: { readonly query: Float32Array; readonly key: Float32Array; readonly value?: Float32Array | undefined },
  cache: LayerCache,
  rows: AttentionRows,
  shape: AttentionShape,
  sinks?: Float32Array,
): Float32Array {
  const { heads, kvHeads, headDim, valueDim, reach, temperature } = shape;
  const keyWidth = kvHeads * headDim;
  const valueWidth = kvHeads * valueDim;
  const place = (t: number, position: number): number =>
    rows.pageTables[rows.sequences[t]][Math.floor(position / PAGE_ROWS)] * PAGE_ROWS + (position % PAGE_ROWS);
  rows.positions.forEach((position, t) => {
    cache.keys.set(key.subarray(t * keyWidth, (t + 1) * keyWidth), place(t, position) * keyWidth);
    if (value === undefined) return;
    cache.values.set(value.subarray(t * valueWidth, (t + 1) * valueWidth), place(t, position) * valueWidth);
  });
  const values =
    value === undefined
      ? { data: cache.keys, row: keyWidth, head: headDim }
      : { data: cache.values, row: valueWidth, head: valueDim };
  const output = new Float32Array(rows.positions.length * heads * valueDim);
  rows.positions.forEach((last, t) => {
    const first = firstVisible(reach, last);
    const seen = last + 1 - first;
    const places = Int32Array.from({ length: seen }, (_, index) => place(t, first + index));
    const factor = shape.scale * (temperature === undefined ? 1 : temperatureAt(temperature, last));
    // The sink's stands behind those of positions.
    const scores = new Float64Array(sinks === undefined ? seen : seen + 1);
    const mixed = new Float64Array(valueDim);
    for (let head = 0; head < heads; head++) {
      const kvHead = Math.floor((head * kvHeads) / heads);
      const from = (t * heads + head) * headDim;
      places.forEach((at, index) => {
        const start = at * keyWidth + kvHead * headDim;
        let sum = 0;
        for (let i = 0; i < headDim; i++) sum += query[from + i] * cache.keys[start + i];
        scores[index] = sum * factor;
      });
      if (sinks !== undefined) scores[seen] = sinks[head];
      softmax(scores);
      mixed.fill(0);
      places.forEach((at, index) => {
        const start = at * values.row + kvHead * values.head;
        for (let i = 0; i < valueDim; i++) mixed[i] += scores[index] * values.data[start + i];
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

/** Gate and up become one, as the activation says; all [T, inner]. */
export function glu(gate: Float32Array, up: Float32Array, activation: Activation): Float32Array {
  if (typeof activation === 'object') return gate.map((value, i) => clampedSwiglu(value, up[i], activation));
  const act = activations[activation];
  return gate.map((value, i) => act(value) * up[i]);
}

const activations: Readonly<Record<Exclude<Activation, object>, (x: number) => number>> = {
  silu: (x) => x / (1 + Math.exp(-x)),
  geluTanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

function clampedSwiglu(gate: number, up: number, { alpha, limit }: ClampedSwiglu): number {
  const g = Math.min(gate, limit);
  const u = Math.max(-limit, Math.min(limit, up));
  return (g / (1 + Math.exp(-alpha * g))) * (u + 1);
}

/** Each number of the gate for the elements that stand in its share of a row: input [T, width], gate [T, a divisor of it]. */
export function gate(input: Float32Array, gates: Float32Array, activation: GateActivation): Float32Array {
  const share = input.length / gates.length;
  const act = gateActivations[activation];
  return input.map((value, i) => value * act(gates[Math.floor(i / share)]));
}

const gateActivations: Readonly<Record<GateActivation, (x: number) => number>> = {
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  // ln(1 + eˣ), so that the exponential never overflows.
  softplus: (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x))),
};

/** input · factor, element by element; the last `rest` elements of a row of `width` stay as they are. */
export function scale(
  input: Float32Array,
  factor: number,
  { width, rest }: { readonly width: number; readonly rest: number } = { width: 1, rest: 0 },
): Float32Array {
  return input.map((value, i) => (i % width < width - rest ? value * factor : value));
}

/** cap · tanh(x / cap), element by element. */
export function softcap(input: Float32Array, cap: number): Float32Array {
  return input.map((value) => cap * Math.tanh(value / cap));
}

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
