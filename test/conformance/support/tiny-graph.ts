/**
 * Graphs of a few operations over chosen inputs, run for real on the CPU and on the reference: a value of the inputs is
 * an `embed` of an F32 table whose row t is what token t brings.
 */

import assert from 'node:assert/strict';
import type { Executable, Step } from '../../../src/backend/backend.ts';
import { cpuBackend } from '../../../src/backend/cpu/backend.ts';
import { referenceBackend } from '../../../src/backend/reference/backend.ts';
import { memorySource } from '../../../src/format/source.ts';
import type { Graph, Operation } from '../../../src/model/graph.ts';
import type { LayerSpec, ModelSpec } from '../../../src/model/spec.ts';
import type { Weight } from '../../../src/model/weights.ts';
import type { Plan } from '../../../src/plan/plan.ts';
import type { FormatId } from '../../../src/quant/index.ts';
import { type DeviceModel, type DeviceOptions, planFor } from '../../support/device.ts';

/** A layer's attention where no operation of it is ever there. */
export const noAttention: LayerSpec['attention'] = {
  norm: { epsilon: 1e-5 },
  heads: 1,
  kvHeads: 1,
  headDim: 4,
  valueDim: 4,
  scale: 1,
  bias: { query: false, key: false, value: false, output: false },
};

export interface TinyWeight {
  readonly format: FormatId;
  readonly shape: readonly number[];
  readonly bytes: Uint8Array<ArrayBuffer>;
}

export interface Tiny extends Pick<DeviceModel, 'spec' | 'graph' | 'weights'> {
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** F32 values as a weight. */
export function f32Weight(values: Float32Array<ArrayBuffer>, ...shape: readonly number[]): TinyWeight {
  return { format: 'F32', shape, bytes: new Uint8Array(values.buffer, values.byteOffset, values.byteLength) };
}

/** Weights one after the other in one source, at offsets that are odd on purpose. */
export function bindWeights(weights: Readonly<Record<string, TinyWeight>>): Pick<Tiny, 'weights' | 'bytes'> {
  const bound = new Map<string, Weight>();
  let at = 1;
  for (const [name, { format, shape, bytes }] of Object.entries(weights)) {
    const part = { name, format, shape, source: 0, offset: at, bytes: bytes.length };
    bound.set(name, { name, format, shape, parts: [part], bytes: bytes.length });
    at += bytes.length + 1;
  }
  const all = new Uint8Array(at);
  for (const [name, { bytes }] of Object.entries(weights)) all.set(bytes, bound.get(name)?.parts[0]?.offset);
  return { weights: bound, bytes: all };
}

/** The bytes of a weight, as {@link bindWeights} put them. */
export function bytesOf({ weights, bytes }: Pick<Tiny, 'weights' | 'bytes'>, name: string): Uint8Array {
  const [part] = weights.get(name)?.parts ?? [];
  assert.ok(part !== undefined, `no weight ${name}`);
  return bytes.subarray(part.offset, part.offset + part.bytes);
}

/**
 * @param inputs tables [rows, width] by the value they become; all have the same rows
 * @param output the value under test; its life lasts to the end of a run
 */
export function tinyGraph(given: {
  readonly rows: number;
  readonly inputs: Readonly<Record<string, Float32Array<ArrayBuffer>>>;
  readonly operations: readonly Operation[];
  readonly widths: Readonly<Record<string, number>>;
  readonly output: string;
  readonly weights?: Readonly<Record<string, TinyWeight>>;
  readonly layers?: readonly LayerSpec[];
}): Tiny {
  const { rows, inputs, operations, output, layers = [] } = given;
  const widths: Record<string, number> = { ...given.widths };
  const weights: Record<string, TinyWeight> = { ...given.weights };
  const embeds = Object.entries(inputs).map(([name, table]): Operation => {
    const width = table.length / rows;
    widths[name] = width;
    weights[`table ${name}`] = f32Weight(table, rows, width);
    return { kind: 'embed', layer: -1, weight: `table ${name}`, output: name };
  });
  const spec: ModelSpec = {
    architecture: 'tiny',
    vocabulary: rows,
    hidden: widths[Object.keys(inputs)[0] as string] as number,
    trainedContext: 256,
    layers,
    finalNorm: { epsilon: 1e-6 },
    head: { tied: false },
  };
  const graph: Graph = { operations: [...embeds, ...operations], widths, logits: output, hidden: [] };
  return { spec, graph, ...bindWeights(weights) };
}

/** Bytes that a request to a backend reads; the executable is disposed of after `use`. */
async function withExecutable<T>(
  tiny: Tiny,
  plan: Plan,
  device: 'cpu' | 'reference',
  use: (executable: Executable) => Promise<T>,
): Promise<T> {
  const backend = device === 'cpu' ? cpuBackend() : referenceBackend;
  const executable = await backend.prepare({ ...tiny, plan, sources: [memorySource(tiny.bytes)] });
  try {
    return await use(executable);
  } finally {
    await executable.dispose();
  }
}

export interface Running {
  readonly executable: Executable;
  readonly plan: Plan;
  /** Runs a step and copies a value, by default the output under test. */
  run(step: Step, name?: string): Promise<Float32Array>;
  /** Runs a step and copies the logits it returns. */
  logits(step: Step): Promise<Float32Array>;
}

export function tinyPlan(tiny: Tiny, options: DeviceOptions = {}): Plan {
  return planFor(tiny, { threads: 1, context: 256, batch: 200, ...options });
}

/** The CPU backend over a plan of `options`: one thread and one arena unless they say otherwise. */
export function onCpu<T>(tiny: Tiny, options: DeviceOptions, use: (running: Running) => Promise<T>): Promise<T> {
  return running(tiny, 'cpu', options, use);
}

export function onReference<T>(tiny: Tiny, options: DeviceOptions, use: (running: Running) => Promise<T>): Promise<T> {
  return running(tiny, 'reference', options, use);
}

function running<T>(
  tiny: Tiny,
  device: 'cpu' | 'reference',
  options: DeviceOptions,
  use: (running: Running) => Promise<T>,
): Promise<T> {
  const plan = tinyPlan(tiny, { ...options, device, cache: device === 'reference' ? 'f32' : options.cache });
  return withExecutable(tiny, plan, device, (executable) =>
    use({
      executable,
      plan,
      async run(step, name = tiny.graph.logits) {
        await executable.run(step);
        return executable.value?.(name) ?? new Float32Array(0);
      },
      logits: async (step) => (await executable.run(step)).slice(),
    }),
  );
}

/** Tokens `first` … `first` + `count` - 1 at positions of the same numbers, of one sequence with pages 0, 1, 2 … */
export function rowsStep(mode: Step['mode'], first: number, count: number, wanted: readonly number[] = []): Step {
  const tokens = Int32Array.from({ length: count }, (_, row) => first + row);
  return {
    mode,
    tokens,
    positions: tokens,
    sequences: new Int32Array(count),
    pageTables: [Int32Array.of(0, 1, 2, 3)],
    wanted: Int32Array.from(wanted),
  };
}
