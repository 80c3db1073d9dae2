/**
 * What the attention suites of every device share: inputs, a graph of one attention, sequences in scattered pages, and
 * the runs whose rows must agree with the reference and with each other.
 */

import assert from 'node:assert/strict';
import type { Step } from '../../../src/backend/backend.ts';
import type { CacheType, Mode } from '../../../src/backend/kernel.ts';
import type { AttentionOperation, Operation } from '../../../src/model/graph.ts';
import type { LayerSpec } from '../../../src/model/spec.ts';
import { formatOf } from '../../../src/quant/index.ts';
import type { DeviceOptions } from '../../support/device.ts';
import { gaussians, random } from './blocks.ts';
import { near, ROWS, sameBits } from './compare.ts';
import { f32Weight, type Running, type Tiny, tinyGraph } from './tiny-graph.ts';

export interface Shape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  /** Values are the beginnings of their keys. */
  readonly joint?: true;
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

/** What attention may do beyond its plain form, with a sink for each head where there are sinks. */
export type Beyond = Pick<AttentionOperation, 'reach' | 'sinks' | 'temperature'>;

export function attentionOver(shape: Shape, inputs: Inputs, beyond: Beyond = {}): Tiny {
  const { joint, ...sizes } = shape;
  const { heads, headDim, valueDim } = sizes;
  const scale = 1 / Math.sqrt(headDim);
  const operation: Operation = {
    kind: 'attention',
    layer: 0,
    query: 'query',
    key: 'key',
    ...(joint === undefined ? { value: 'value' } : {}),
    ...sizes,
    scale,
    ...beyond,
    output: 'y',
  };
  const sinks = gaussians(heads, random(heads)).map((x) => 3 * x) as Float32Array<ArrayBuffer>;
  const layer: LayerSpec = {
    attention: {
      ...sizes,
      scale,
      norm: { epsilon: 1e-6 },
      ...(joint === undefined
        ? {}
        : { latent: { plainDim: headDim, headValueDim: valueDim, norm: { epsilon: 1e-6 } } }),
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
    weights: beyond.sinks === undefined ? {} : { [beyond.sinks]: f32Weight(sinks, heads) },
  });
}

/** Values that are the beginnings of their keys: narrower than these, as wide, and more query heads than a unit takes. */
export const jointShapes: readonly Shape[] = [
  { heads: 4, kvHeads: 1, headDim: 48, valueDim: 32, joint: true },
  { heads: 6, kvHeads: 2, headDim: 20, valueDim: 20, joint: true },
  { heads: 128, kvHeads: 1, headDim: 148, valueDim: 132, joint: true },
];

/** Around page borders, the fours that kernels take keys by, and the length of all there is. */
export const beyondPlain: Readonly<Record<string, Beyond>> = {
  'a window of one position': { reach: { kind: 'window', length: 1 } },
  'a window of 2': { reach: { kind: 'window', length: 2 } },
  'a window of 7': { reach: { kind: 'window', length: 7 } },
  'a window of a page': { reach: { kind: 'window', length: 64 } },
  'a window over a page border': { reach: { kind: 'window', length: 66 } },
  'a window of all but one': { reach: { kind: 'window', length: 199 } },
  'a window of all': { reach: { kind: 'window', length: 200 } },
  'chunks of one position': { reach: { kind: 'chunk', length: 1 } },
  'chunks of 6': { reach: { kind: 'chunk', length: 6 } },
  'chunks of a page': { reach: { kind: 'chunk', length: 64 } },
  'chunks of 129': { reach: { kind: 'chunk', length: 129 } },
  sinks: { sinks: 'sinks' },
  'a temperature that rises with every position': { temperature: { length: 1, scale: 0.5 } },
  'a temperature that rises at 31': { temperature: { length: 32, scale: 0.1 } },
  'sinks and a window': { sinks: 'sinks', reach: { kind: 'window', length: 9 } },
  'sinks, chunks and a temperature': {
    sinks: 'sinks',
    reach: { kind: 'chunk', length: 70 },
    temperature: { length: 10, scale: 0.3 },
  },
};

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

export const sequenceNames = ['long', 'middle', 'short'] as const;

export const run = (sequence: SequenceName, first: number, end: number): Row[] =>
  Array.from({ length: end - first }, (_, i) => ({ sequence, position: first + i }));

export function stepOf(
  mode: Mode,
  rows: readonly Row[],
  pagesOf: (name: SequenceName) => readonly number[] = (name) => sequences[name].pages,
): Step {
  const used = [...new Set(rows.map(({ sequence }) => sequence))];
  return {
    mode,
    tokens: Int32Array.from(rows, ({ sequence, position }) => sequences[sequence].token(position)),
    positions: Int32Array.from(rows, ({ position }) => position),
    sequences: Int32Array.from(rows, ({ sequence }) => used.indexOf(sequence)),
    pageTables: used.map((name) => Int32Array.from(pagesOf(name))),
    wanted: new Int32Array(0),
  };
}

export const options = (cache: CacheType, more: DeviceOptions = {}): DeviceOptions => ({ cache, sessions: 3, ...more });

/** What runs steps and gives the value under test. */
export type Runs = Pick<Running, 'run'>;

export type Prompts = Readonly<Record<SequenceName, Float32Array>>;

/** Every row of every sequence, each sequence as one prompt. */
export async function wholePrompts({ run: runStep }: Runs): Promise<Prompts> {
  const values: Partial<Record<SequenceName, Float32Array>> = {};
  for (const name of sequenceNames) values[name] = await runStep(stepOf('prompt', run(name, 0, lengths[name])));
  return values as Prompts;
}

/** Positions on both sides of page borders. */
export const edges = [0, 1, 2, 3, 62, 63, 64, 65, 127, 128, 129, 130, 191, 192, 199];

/** Where the long sequence lies when it lies elsewhere. */
export const otherPages = () => [11, 10, 6, 4];

/** The long sequence as prompts of several sizes, in {@link otherPages}. */
export async function chunkedPrompt(device: Runs, width: number): Promise<Float32Array> {
  const values = new Float32Array(ROWS * width);
  let at = 0;
  for (const size of [1, 2, 60, 1, 1, 64, 65, 6]) {
    values.set(await device.run(stepOf('prompt', run('long', at, at + size), otherPages)), at * width);
    at += size;
  }
  assert.equal(at, ROWS);
  return values;
}

/**
 * Prompts against the reference and beside each other; steps against the reference, in a batch and as a verify.
 * @returns the prompts' rows, and the rows of the long sequence at {@link edges} as steps of one
 */
export async function checkRuns(
  device: Runs,
  given: {
    readonly expected: Prompts;
    /** Values a row. */
    readonly width: number;
    readonly tolerance: number;
    readonly what: string;
  },
): Promise<{ prompts: Prompts; alone: ReadonlyMap<number, Float32Array> }> {
  const { expected, width, tolerance, what } = given;
  const rowOf = (values: Float32Array, position: number) => values.subarray(position * width, (position + 1) * width);
  const prompts = await wholePrompts(device);
  for (const name of sequenceNames) near(prompts[name], expected[name], tolerance, `${what}, ${name}`);

  const together = [...run('long', 150, 200), ...run('middle', 0, 100), ...run('short', 0, 3)];
  const mixed = await device.run(stepOf('prompt', together));
  together.forEach(({ sequence, position }, i) => {
    const which = `${what}: prompt row ${position} of ${sequence} beside others`;
    sameBits(rowOf(mixed, i), rowOf(prompts[sequence], position), which);
  });

  // Steps have an order of their own, so their rows are held to the reference and to each other.
  const alone = new Map<number, Float32Array>();
  for (const position of edges) {
    alone.set(position, await device.run(stepOf('step', run('long', position, position + 1))));
  }
  near(
    Float32Array.from(edges.flatMap((position) => [...(alone.get(position) as Float32Array)])),
    Float32Array.from(edges.flatMap((position) => [...rowOf(expected.long, position)])),
    tolerance,
    `${what}, steps`,
  );
  const others: Row[] = [
    { sequence: 'short', position: 2 },
    { sequence: 'middle', position: 99 },
  ];
  const batch = [...others, ...edges.map((position): Row => ({ sequence: 'long', position }))];
  const batched = await device.run(stepOf('step', batch));
  batch.forEach(({ sequence, position }, i) => {
    if (sequence !== 'long') return;
    sameBits(rowOf(batched, i), alone.get(position) as Float32Array, `${what}: step row ${position} in a batch`);
  });
  for (const [i, other] of others.entries()) {
    sameBits(await device.run(stepOf('step', [other])), rowOf(batched, i), `${what}: ${other.sequence} alone`);
  }
  const verify = await device.run(stepOf('step', run('long', 136, 200)));
  for (const position of edges.filter((at) => at >= 136)) {
    const which = `${what}: row ${position} of a verify`;
    sameBits(rowOf(verify, position - 136), alone.get(position) as Float32Array, which);
  }
  return { prompts, alone };
}
