/** Graphs of single experts over chosen weights, run for real, and the calls that they are asked with. */

import type { Executable, ExpertRunner, ExpertWork } from '../../../src/backend/backend.ts';
import { memorySource } from '../../../src/format/source.ts';
import type { Graph, Operation } from '../../../src/model/graph.ts';
import type { ModelSpec } from '../../../src/model/spec.ts';
import { backendOf, type DeviceOptions } from '../../support/device.ts';
import { gaussians, nastyRows, random } from './blocks.ts';
import { type MoeCase, moeWeights } from './moe-cases.ts';
import { bindWeights, f32Weight, noAttention, type Tiny, type TinyWeight, tinyPlan } from './tiny-graph.ts';

export interface Pair {
  readonly row: number;
  readonly expert: number;
}

/** @param layers that have the same experts, but each its own norm where there is one */
export function expertsTiny(
  given: MoeCase,
  options: { readonly normed?: boolean; readonly layers?: number } = {},
): Tiny {
  const { hidden, moe } = given;
  const { normed = false, layers = 1 } = options;
  const weights: Record<string, TinyWeight> = {};
  const all = moeWeights(given);
  for (const part of ['gate', 'up', 'down'].flatMap((name) => [`m.${name}`, `m.${name}.bias`, `m.${name}Scale`])) {
    const weight = all[part];
    if (weight !== undefined) weights[part] = weight;
  }
  const operations: Operation[] = [];
  const widths: Record<string, number> = {};
  for (let layer = 0; layer < layers; layer++) {
    const norm = normed ? { weight: `n${layer}`, epsilon: 1e-5 } : undefined;
    if (normed) weights[`n${layer}`] = f32Weight(normWeight(hidden, layer), hidden);
    operations.push({ kind: 'experts', layer, input: `x${layer}`, norm, prefix: 'm', moe, output: `y${layer}` });
    widths[`x${layer}`] = hidden;
    widths[`y${layer}`] = hidden;
  }
  const spec: ModelSpec = {
    architecture: 'tiny',
    vocabulary: 1,
    hidden,
    trainedContext: 256,
    layers: Array.from({ length: layers }, () => ({
      attention: noAttention,
      feedForward: { kind: 'moe', norm: { epsilon: 1e-5 }, moe },
    })),
    finalNorm: { epsilon: 1e-6 },
    head: { tied: false },
  };
  const graph: Graph = { operations, widths, logits: '', hidden: [] };
  return { spec, graph, ...bindWeights(weights) };
}

/** The same for 32 values side by side, so that rows which integers hold without loss still are such behind the norm. */
function normWeight(width: number, seed: number): Float32Array<ArrayBuffer> {
  const each = gaussians(Math.ceil(width / 32), random(seed));
  return Float32Array.from({ length: width }, (_, i) => each[i >> 5] as number);
}

/** Prepares a graph of experts and gives it to `use`. */
export async function withExperts<T>(
  tiny: Tiny,
  options: DeviceOptions,
  use: (experts: ExpertRunner, executable: Executable) => T | Promise<T>,
): Promise<T> {
  const plan = tinyPlan(tiny, options);
  const executable = await backendOf(plan).prepare({ ...tiny, plan, sources: [memorySource(tiny.bytes)] });
  try {
    return await use(executable.experts as ExpertRunner, executable);
  } finally {
    await executable.dispose();
  }
}

/** Rows of every kind, as `compare.ts` knows them. */
export function expertRows(rows: number, { hidden }: MoeCase): Float32Array {
  return nastyRows(rows, hidden, hidden);
}

/** For each rank a pair of every row: the row's experts differ, and all experts have rows. */
export function pairsByRank(rows: number, { moe }: MoeCase): Pair[][] {
  return Array.from({ length: moe.used }, (_, rank) =>
    Array.from({ length: rows }, (_, row) => ({ row, expert: (row * 5 + (row >> 3) + rank) % moe.experts })),
  );
}

/** The call for some pairs of `rows`, with no row that no pair names, in the order in which pairs first name them. */
export function workOf(layer: number, rows: Float32Array, width: number, pairs: readonly Pair[]): ExpertWork {
  const named = [...new Set(pairs.map(({ row }) => row))];
  const own = new Float32Array(named.length * width);
  named.forEach((row, index) => {
    own.set(rows.subarray(row * width, (row + 1) * width), index * width);
  });
  return {
    layer,
    rows: own,
    rowOf: Int32Array.from(pairs, ({ row }) => named.indexOf(row)),
    expertOf: Int32Array.from(pairs, ({ expert }) => expert),
  };
}

/** What the device makes of pairs, copied. */
export function computed(
  experts: ExpertRunner,
  rows: Float32Array,
  width: number,
  pairs: readonly Pair[],
  layer = 0,
): Float32Array {
  return experts
    .start(workOf(layer, rows, width, pairs))()
    .slice();
}
