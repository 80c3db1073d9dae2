/** Places every operation, picks every kernel, sizes every buffer, or refuses; before a weight is read. */

import { PAGE_ROWS } from '../backend/backend.ts';
import { MAX_STEP_ROWS } from '../backend/kernel.ts';
import { OutOfMemoryError, Refusal } from '../errors.ts';
import { type Graph, ownOperations } from '../model/graph.ts';
import type { Weights } from '../model/weights.ts';
import { chooseContext } from './context.ts';
import { adapterNumber, gpuUse, placementFor, reasonOf } from './devices.ts';
import { checkSlots, type ExpertChoice } from './experts.ts';
import { sharedWith, whatGpuTakes } from './fit.ts';
import {
  type Chosen,
  type Cut,
  chooseRows,
  cutsFor,
  type Part,
  partsOf,
  placePart,
  weightNamesOf,
  weightsOf,
} from './parts.ts';
import { hopedContext, type Placed, type PlanRequest, pagesFor } from './placer.ts';
import { arenaLimit } from './placers/cpu.ts';
import type { Plan, PlannedWeight } from './plan.ts';

export type { Cut } from './parts.ts';
export { weightsOf } from './parts.ts';
export type { PlanRequest } from './placer.ts';

/** What stays where it is asked for, of a plan. */
export interface Placing {
  /** Why it is not the device that was hoped for. */
  readonly reason?: string;
  /** How experts are split of the layers that the cuts say. */
  readonly experts?: ExpertChoice;
  /** Why the GPU has these layers and experts, where that is not what was asked for, and not all. */
  readonly layersReason?: string;
}

/**
 * @throws Refusal `refused` naming each kernel row tried; OutOfMemoryError `out_of_memory` when the model does not fit;
 * UsageError `usage` for a value that no plan can hold. With device `auto` what the GPU refuses goes to the CPU.
 */
export function plan(request: PlanRequest): Plan {
  const made = planDevices(request);
  checkSlots(request, made);
  return made;
}

function planDevices(request: PlanRequest): Plan {
  const { options, platform, spec } = request;
  const { device, gpuLayers, reason } = placementFor(options, platform);
  const layers = spec.layers.length;
  if (device !== 'gpu') return planParts(request, [{ device, end: layers }], { reason });
  try {
    const taken = whatGpuTakes(request, gpuLayers);
    return planParts(request, cutsFor(taken.count, layers, taken.experts?.layers), taken);
  } catch (error) {
    if (gpuUse(options) !== 'auto' || !(error instanceof Refusal || error instanceof OutOfMemoryError)) throw error;
    return planParts(request, [{ device: 'cpu', end: layers }], { reason: reasonOf(error) });
  }
}

/**
 * The plan of a model cut between devices, in the order of its layers; no device has two parts.
 * @throws as {@link plan}
 */
export function planParts(
  request: PlanRequest,
  cuts: readonly Cut[],
  { reason, experts, layersReason }: Placing = {},
): Plan {
  const { spec, options, platform } = request;
  const parts = partsOf(request, cuts);
  const shared = sharedWith(request, parts, experts);
  const { cacheType, promptRows } = shared;
  const chosen = parts.map((part) => chooseRows(part, shared));
  const { context, contextReason, placed } = chooseContext({
    request,
    hopedFor: hopedContext(request),
    parts,
    place: (length) => parts.map((part, index) => placePart(part, shared, chosen[index] as Chosen, length)),
  });
  const sum = (of: (each: Placed) => number) => placed.reduce((total, each) => total + of(each), 0);
  const main = parts.find((part) => part.device === 'gpu') ?? (parts[0] as Part);
  const made: Plan = {
    architecture: spec.architecture,
    device: main.device,
    deviceReason: reason,
    layersReason,
    parts: parts.map(({ device, first, end, split, experts: computed, features, memoryBytes }, index) => ({
      device,
      first,
      end,
      split,
      experts: computed,
      features: [...features].sort(),
      bytes: bytesOf(placed[index] as Placed),
      memoryBytes,
    })),
    experts: shared.experts,
    threads: Math.max(...parts.map(({ placer, request: own }) => placer.threads(own, shared.experts))),
    features: [...main.features].sort(),
    adapter: main.device === 'gpu' ? platform.adapter?.name : undefined,
    adapterNumber: main.device === 'gpu' ? adapterNumber(options) : undefined,
    unchecked: main.device === 'gpu' ? options.gpuChecks !== true && runsUnchecked(chosen) : undefined,
    context,
    contextReason,
    maxRows: { prompt: promptRows, step: MAX_STEP_ROWS, wanted: MAX_STEP_ROWS },
    cache: {
      type: cacheType,
      pages: pagesFor(context, options),
      pageRows: PAGE_ROWS,
      bytes: sum(({ cacheBytes }) => cacheBytes),
    },
    arenas: placed.flatMap(({ arenas }) => arenas),
    arenaBytes: arenaLimit(options),
    operations: chosen.flatMap(({ operations }) => operations),
    weights: placed.flatMap(({ weights }) => weights.map((weight) => withGathered(weight, request.weights))),
    buffers: placed.flatMap(({ buffers }) => buffers),
    ignored: request.ignored,
    bytes: {
      weights: sum(({ weightBytes }) => weightBytes),
      cache: sum(({ cacheBytes }) => cacheBytes),
      buffers: sum(({ bufferBytes }) => bufferBytes),
      total: sum(({ total }) => total),
    },
    memoryBytes: parts.length === 1 ? main.memoryBytes : undefined,
    bytesPerToken: bytesPerToken(request.graph, request.weights),
    speculation: request.speculation,
    // Where an expert is computed decides the last bits; only what stays put is the same every time.
    reproducible: shared.experts === undefined || shared.experts.passes === 'all',
  };
  programs.set(
    made,
    placed.map(({ program }) => program),
  );
  return made;
}

function bytesOf({ weightBytes, cacheBytes, bufferBytes, total }: Placed): Plan['bytes'] {
  return { weights: weightBytes, cache: cacheBytes, buffers: bufferBytes, total };
}

/** What {@link programsOf} gives; no part of the plan, which is for people and prints as JSON. */
const programs = new WeakMap<Plan, readonly unknown[]>();

/** The backends' programs that placing made for a plan's parts, so that they need not be made again. */
export function programsOf(plan: Plan): readonly unknown[] | undefined {
  return programs.get(plan);
}

/** Whether every kernel of the GPU stays within its bounds by itself. */
function runsUnchecked(chosen: readonly Chosen[]): boolean {
  return chosen
    .flatMap(({ rows }) => [...rows.prompt, ...rows.step])
    .every(({ device, unchecked }) => device !== 'gpu' || unchecked === true);
}

/** Says of a planned weight what is done to it before its device has it. */
function withGathered(planned: PlannedWeight, weights: Weights): PlannedWeight {
  return weights.get(planned.name)?.gathered === true ? { ...planned, gathered: true } : planned;
}

/** What decoding one token reads of the weights: every matrix that is multiplied, of routed experts the used share. */
function bytesPerToken(graph: Graph, weights: Weights): number {
  let bytes = 0;
  const size = (name: string) => weights.get(name)?.bytes ?? 0;
  for (const operation of ownOperations(graph)) {
    if (operation.kind === 'moe') {
      const { prefix, moe } = operation;
      for (const name of Object.keys(weightsOf(operation, weights))) {
        const routed = ['gate', 'up', 'down'].some((part) => name === `${prefix}.${part}`);
        bytes += routed ? (size(name) * moe.used) / moe.experts : size(name);
      }
    } else if (operation.kind === 'embed') {
      const weight = weights.get(operation.weight);
      bytes += weight === undefined ? 0 : weight.bytes / (weight.shape[0] as number);
    } else {
      for (const name of weightNamesOf(operation, weights)) bytes += size(name);
    }
  }
  return Math.round(bytes);
}
