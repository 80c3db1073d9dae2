/** What the attention suites of every device share: inputs, a graph of one attention, and sequences in scattered pages. */

import type { Operation } from '../../../src/model/graph.ts';
import type { LayerSpec } from '../../../src/model/spec.ts';
import { formatOf } from '../../../src/quant/index.ts';
import { gaussians, random } from './blocks.ts';
import { ROWS } from './compare.ts';
import { type Tiny, tinyGraph } from './tiny-graph.ts';

export interface Shape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
}

export type Inputs = Readonly<Record<'query' | 'key' | 'value', Float32Array<ArrayBuffer>>>;

export function inputsOf({ heads, kvHeads, headDim, valueDim }: Shape, seed: number): Inputs {
  const next = random(seed);
  const values = gaussians(ROWS * kvHeads * valueDim, next);
  // Some rows of zeros, and an outlier here and there.
  for (let i = 0; i < values.length; i++) {
    if (Math.floor(i / (kvHeads * valueDim)) % 9 === 4) values[i] = 0;
    else if (i % 97 === 13) values[i] = 300 * (values[i] as number);
  }
  return {
    query: gaussians(ROWS * heads * headDim, next) as Float32Array<ArrayBuffer>,
    key: gaussians(ROWS * kvHeads * headDim, next) as Float32Array<ArrayBuffer>,
    value: values as Float32Array<ArrayBuffer>,
  };
}

/** As f16 holds them: a cache of f16 then loses nothing. */
export function roundedToF16(values: Float32Array<ArrayBuffer>): Float32Array<ArrayBuffer> {
  const bytes = new Uint8Array(values.length * 2);
  const format = formatOf('F16');
  format.encode?.(values, 0, bytes, 0, values.length);
  const rounded = new Float32Array(values.length);
  format.decode(bytes, 0, rounded, 0, values.length);
  return rounded;
}

export function attentionOver(shape: Shape, inputs: Inputs): Tiny {
  const { heads, headDim, valueDim } = shape;
  const scale = 1 / Math.sqrt(headDim);
  const operation: Operation = {
    kind: 'attention',
    layer: 0,
    query: 'query',
    key: 'key',
    value: 'value',
    ...shape,
    scale,
    output: 'y',
  };
  const layer: LayerSpec = {
    attention: {
      ...shape,
      scale,
      norm: { epsilon: 1e-6 },
      bias: { query: false, key: false, value: false, output: false },
    },
    feedForward: { kind: 'dense', norm: { epsilon: 1e-6 }, inner: 0, activation: 'silu' },
  };
  return tinyGraph({
    rows: ROWS,
    inputs: { ...inputs },
    operations: [operation],
    widths: { y: heads * valueDim },
    output: 'y',
    layers: [layer],
  });
}

/** Sequences by their pages; which token stands at a position. All lie scattered among 12 pages. */
export const sequences = {
  long: { pages: [5, 2, 9, 7], token: (position: number) => position },
  middle: { pages: [0, 8], token: (position: number) => 199 - position },
  short: { pages: [3], token: (position: number) => 50 + 3 * position },
} as const;
export type SequenceName = keyof typeof sequences;
export const lengths: Readonly<Record<SequenceName, number>> = { long: ROWS, middle: 100, short: 3 };

export interface Row {
  readonly sequence: SequenceName;
  readonly position: number;
}
