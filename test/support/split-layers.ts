/**
 * Layers of experts alone, split between the GPU and the CPU over a real plan: small enough for thousands of runs, with
 * what each run has to give computed by the reference's experts.
 */

import assert from 'node:assert/strict';
import type { Executable, ExpertRunner, GivenRouting } from '../../src/backend/backend.ts';
import { gpuBackend } from '../../src/backend/gpu/backend.ts';
import type { Gpu } from '../../src/backend/gpu/device.ts';
import { prepareParts } from '../../src/backend/parts.ts';
import { referenceBackend } from '../../src/backend/reference/backend.ts';
import { memorySource } from '../../src/format/source.ts';
import { expertsGraph } from '../../src/model/experts-graph.ts';
import type { Operation } from '../../src/model/graph.ts';
import { programsOf } from '../../src/plan/place.ts';
import type { Plan } from '../../src/plan/plan.ts';
import { gaussians, random } from '../conformance/support/blocks.ts';
import { type MoeCase, moeWeights } from '../conformance/support/moe-cases.ts';
import {
  bytesOf,
  f32Weight,
  noAttention,
  type Tiny,
  type TinyWeight,
  tinyGraph,
  tinyPlan,
} from '../conformance/support/tiny-graph.ts';
import { backendOf, type DeviceOptions } from './device.ts';

/** Rows of the table that steps take theirs from. */
export const TABLE_ROWS = 64;

/** x ← x + experts(norm(x)) for each of some layers, each with weights of its own. */
export function splitLayers(given: MoeCase, layers: number): Tiny {
  const { hidden, moe } = given;
  const weights: Record<string, TinyWeight> = {};
  const operations: Operation[] = [];
  const widths: Record<string, number> = {};
  for (let layer = 0; layer < layers; layer++) {
    const prefix = `layers.${layer}.moe`;
    for (const [name, weight] of Object.entries(moeWeights(given, 100 + 10 * layer))) {
      weights[name.replace(/^m\./, `${prefix}.`)] = weight;
    }
    const norm = `layers.${layer}.norm`;
    weights[norm] = f32Weight(Float32Array.from(gaussians(hidden, random(layer)), Math.abs), hidden);
    const [input, output] = [`x${layer}`, `x${layer + 1}`];
    operations.push(
      { kind: 'norm', layer, input, weight: norm, epsilon: 1e-5, group: hidden, output: `normed${layer}` },
      { kind: 'moe', layer, input: `normed${layer}`, prefix, moe, output: `made${layer}` },
      { kind: 'add', layer, left: input, right: `made${layer}`, output },
    );
    for (const name of [output, `normed${layer}`, `made${layer}`]) widths[name] = hidden;
  }
  return tinyGraph({
    rows: TABLE_ROWS,
    inputs: { x0: Float32Array.from(gaussians(TABLE_ROWS * hidden, random(77))) },
    operations,
    widths,
    output: `x${layers}`,
    weights,
    layers: Array.from({ length: layers }, () => ({
      attention: noAttention,
      feedForward: { kind: 'moe', norm: { epsilon: 1e-5 }, moe },
    })),
  });
}

/** The experts that every layer's rows take, [rows · used], whatever the routers say. */
export class ChosenRouting implements GivenRouting {
  readonly #ids = new Map<number, Uint32Array>();

  advance(): void {}

  choose(layer: number, ids: Uint32Array): void {
    this.#ids.set(layer, ids);
  }

  ids(layer: number): Uint32Array {
    const ids = this.#ids.get(layer);
    assert.ok(ids !== undefined, `nothing was chosen for layer ${layer}`);
    return ids;
  }
}

export interface SplitModel {
  readonly executable: Executable;
  readonly plan: Plan;
}

/**
 * Prepares layers with their experts split as the options say.
 * @param given.damage what becomes of an executable before others see it
 */
export async function prepareSplit(
  tiny: Tiny,
  options: DeviceOptions,
  given: {
    readonly gpu: Gpu;
    readonly routing?: GivenRouting;
    readonly signal?: AbortSignal;
    readonly damage?: (executable: Executable, device: string) => Executable;
  },
): Promise<SplitModel> {
  const { gpu, routing, signal, damage = (executable) => executable } = given;
  const { expertUses: uses } = options;
  const plan = tinyPlan(tiny, { device: 'gpu', threads: 2, ...options });
  assert.ok(plan.experts !== undefined);
  const executable = await prepareParts(
    {
      ...tiny,
      plan,
      programs: programsOf(plan),
      sources: [memorySource(tiny.bytes)],
      routing,
      expertUses: uses && ((layer: number, expert: number) => uses[layer]?.[expert] ?? 0),
      signal,
    },
    (device) => {
      const backend = device === 'gpu' ? gpuBackend({ gpu }) : backendOf({ device });
      return { ...backend, prepare: async (request) => damage(await backend.prepare(request), device) };
    },
  );
  return { executable, plan };
}

/** What layers make of rows that go through the experts chosen, by the reference; all of a row weigh the same. */
export async function expectedOf(
  tiny: Tiny,
): Promise<(rows: Float32Array, idsOf: (layer: number) => Uint32Array) => Float32Array> {
  const { spec } = tiny;
  const layers = spec.layers.map((_, layer) => layer);
  const graph = expertsGraph(tiny.graph, new Set(layers));
  const given = { ...tiny, graph };
  const plan = tinyPlan(given, { device: 'reference' });
  const executable = await referenceBackend.prepare({ ...given, plan, sources: [memorySource(tiny.bytes)] });
  const runner = executable.experts as ExpertRunner;
  return (table, idsOf) => {
    const { hidden } = spec;
    const rows = table.slice();
    const count = rows.length / hidden;
    for (const layer of layers) {
      const expertOf = Int32Array.from(idsOf(layer));
      const used = expertOf.length / count;
      const rowOf = Int32Array.from(expertOf, (_, pair) => Math.floor(pair / used));
      const made = runner.start({ layer, rows, rowOf, expertOf })();
      for (let pair = 0; pair < expertOf.length; pair++) {
        for (let i = 0; i < hidden; i++) {
          rows[(rowOf[pair] as number) * hidden + i] += (made[pair * hidden + i] as number) / used;
        }
      }
    }
    return rows;
  };
}

/** The rows that steps take theirs from, [TABLE_ROWS, hidden]. */
export function tableOf(tiny: Tiny): Float32Array {
  return new Float32Array(bytesOf(tiny, 'table x0').slice().buffer);
}
