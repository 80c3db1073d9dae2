/** A model on any device, through a real plan but without the engine: for tests of what lies below it. */

import { type Backend, type Executable, PAGE_ROWS, type Step } from '../../src/backend/backend.ts';
import { cpuBackend } from '../../src/backend/cpu/backend.ts';
import { gpuBackend } from '../../src/backend/gpu/backend.ts';
import type { AdapterFacts, Gpu } from '../../src/backend/gpu/device.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import { prepareParts } from '../../src/backend/parts.ts';
import { referenceBackend } from '../../src/backend/reference/backend.ts';
import type { ModelFile } from '../../src/format/model-file.ts';
import { openModelFile } from '../../src/format/open.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import type { Graph } from '../../src/model/graph.ts';
import { readModel } from '../../src/model/read-model.ts';
import type { ModelSpec } from '../../src/model/spec.ts';
import type { Weights } from '../../src/model/weights.ts';
import { type Cut, plan as makePlan, type PlanRequest, planParts, programsOf } from '../../src/plan/place.ts';
import type { Plan, PlanOptions } from '../../src/plan/plan.ts';
import { detectFeatures } from '../../src/platform/features.ts';
import { nodeModelSource } from './node-source.ts';

export interface DeviceModel {
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: Weights;
  readonly plan: Plan;
  readonly executable: Executable;
}

export interface DeviceOptions extends PlanOptions {
  /** Instead of what this runtime has. */
  readonly features?: ReadonlySet<string>;
  /** Of the GPU, where the plan is for one; without it nothing is asked of its limits. */
  readonly adapter?: AdapterFacts;
  /** Where layers run, instead of where the options put them. */
  readonly cuts?: readonly Cut[];
  /** Whether what predicts further ahead is there, too. */
  readonly mtp?: boolean;
  /** Changes what the file's head says, before it is read. */
  alter?(file: ModelFile): ModelFile;
}

/** A GPU for plans, which need none to be there. */
export const aCard: AdapterFacts = {
  name: 'a card',
  features: ['subgroups'],
  maxBufferBytes: 2 ** 30,
  maxBindingBytes: 2 ** 30,
  maxBindings: 16,
  workgroupBytes: 32_768,
  software: false,
};

/** A plan for a graph, as the engine would make it on a machine of 2 cores and 8 GiB. */
export function planFor(given: Pick<DeviceModel, 'spec' | 'graph' | 'weights'>, options: DeviceOptions = {}): Plan {
  const { features, adapter, cuts, mtp, alter, ...planOptions } = options;
  const request: PlanRequest = {
    ...given,
    ignored: [],
    options: planOptions,
    platform: { threads: 2, freeMemoryBytes: 8 * 2 ** 30, features: features ?? detectFeatures(), adapter },
  };
  return cuts === undefined ? makePlan(request) : planParts(request, cuts);
}

export function backendOf({ device }: Pick<Plan, 'device'>): Backend {
  if (device === 'gpu') return gpuBackend();
  return device === 'cpu' ? cpuBackend() : referenceBackend;
}

/** A loaded model; `executable.dispose` closes all of it. */
export async function openDevice(path: string, options: DeviceOptions, gpu?: Gpu): Promise<DeviceModel> {
  const file: ModelFile = await openModelFile(await nodeModelSource(path));
  try {
    const { spec, weights, sources } = readModel(options.alter?.(file) ?? file, { mtp: options.mtp });
    const graph = buildGraph(spec);
    const plan = planFor({ spec, graph, weights }, options);
    const request = { plan, programs: programsOf(plan), spec, graph, weights, sources };
    const executable = await prepareParts(request, (device) =>
      device === 'gpu' ? gpuBackend({ gpu }) : backendOf({ device }),
    );
    return { spec, graph, weights, plan, executable };
  } finally {
    await file.close();
  }
}

/**
 * Loads a model and gives it to `use`; everything is closed afterwards.
 * @param gpu a device that is open already, and whose kernels are compiled as long as somebody uses them
 */
export async function withDevice<T>(
  path: string,
  options: DeviceOptions,
  use: (model: DeviceModel) => Promise<T>,
  gpu?: Gpu,
): Promise<T> {
  const model = await openDevice(path, options, gpu);
  try {
    return await use(model);
  } finally {
    await model.executable.dispose();
  }
}

/** One row of a step: its token, its position and the first page of its sequence. */
export interface StepRow {
  readonly token: number;
  readonly position: number;
  readonly sequence?: number;
}

/** A step over rows whose sequences each own `pagesEach` pages in a row; all logits are wanted. */
export function stepOf(mode: Mode, rows: readonly StepRow[], pagesEach: number): Step {
  const sequences = [...new Set(rows.map(({ sequence = 0 }) => sequence))];
  return {
    mode,
    tokens: Int32Array.from(rows, ({ token }) => token),
    positions: Int32Array.from(rows, ({ position }) => position),
    sequences: Int32Array.from(rows, ({ sequence = 0 }) => sequences.indexOf(sequence)),
    pageTables: sequences.map((sequence) =>
      Int32Array.from({ length: pagesEach }, (_, page) => sequence * pagesEach + page),
    ),
    wanted: Int32Array.from(rows, (_, row) => row),
  };
}

/** Logits of tokens at positions `start` … of sequence 0, copied. */
export async function runTokens(
  { executable, plan }: DeviceModel,
  tokens: ArrayLike<number>,
  start: number,
  mode: Mode,
): Promise<Float32Array> {
  const rows = Array.from(tokens, (token, index) => ({ token, position: start + index }));
  return (await executable.run(stepOf(mode, rows, Math.ceil(plan.context / PAGE_ROWS)))).slice();
}

/** √(Σ(a-b)² / Σb²): how far `found` lies from `expected`. */
export function relativeRms(found: ArrayLike<number>, expected: ArrayLike<number>): number {
  let error = 0;
  let size = 0;
  for (let i = 0; i < expected.length; i++) {
    error += ((found[i] as number) - (expected[i] as number)) ** 2;
    size += (expected[i] as number) ** 2;
  }
  return Math.sqrt(error / size);
}
