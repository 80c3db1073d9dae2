/** Places every operation, picks every kernel, sizes every buffer, or refuses; before a weight is read. */

import { PAGE_ROWS } from '../backend/backend.ts';
import { MAX_STEP_ROWS } from '../backend/kernel.ts';
import { OutOfMemoryError, Refusal } from '../errors.ts';
import { canBeApart } from '../model/experts-graph.ts';
import type { Graph } from '../model/graph.ts';
import type { Weights } from '../model/weights.ts';
import { chooseContext, doesNotFit } from './context.ts';
import { adapterNumber, gpuUse, placementFor, reasonOf } from './devices.ts';
import { checkUses, type ExpertChoice, expertChoice, planExperts } from './experts.ts';
import {
  type Chosen,
  type Cut,
  chooseRows,
  cutsFor,
  type Part,
  partsOf,
  placePart,
  type Shared,
  sharedBy,
  weightNamesOf,
  weightsOf,
} from './parts.ts';
import { hopedContext, type Placed, type PlanRequest, pagesFor } from './placer.ts';
import { arenaLimit } from './placers/cpu.ts';
import { bindsAtOnce } from './placers/gpu.ts';
import type { Plan } from './plan.ts';

export type { Cut } from './parts.ts';
export { weightsOf } from './parts.ts';
export type { PlanRequest } from './placer.ts';

/** What stays where it is asked for, of a plan. */
export interface Placing {
  /** Why it is not the device that was hoped for. */
  readonly reason?: string;
  /** How experts are split of the layers that the cuts say. */
  readonly experts?: ExpertChoice;
}

/**
 * @throws Refusal `refused` naming each kernel row tried; OutOfMemoryError `out_of_memory` when the model does not fit;
 * UsageError `usage` for a value that no plan can hold. With device `auto` what the GPU refuses goes to the CPU.
 */
export function plan(request: PlanRequest): Plan {
  const made = planDevices(request);
  checkUses(request, made);
  return made;
}

function planDevices(request: PlanRequest): Plan {
  const { options, platform, spec } = request;
  const { device, gpuLayers, reason } = placementFor(options, platform);
  const layers = spec.layers.length;
  if (device !== 'gpu') return planParts(request, [{ device, end: layers }], { reason });
  try {
    const placed = gpuLayers === 'auto' ? whatFits(request) : asAsked(request, gpuLayers);
    return planParts(request, cutsFor(placed.count, layers, placed.experts?.layers), placed);
  } catch (error) {
    if (gpuUse(options) !== 'auto' || !(error instanceof Refusal || error instanceof OutOfMemoryError)) throw error;
    return planParts(request, [{ device: 'cpu', end: layers }], { reason: reasonOf(error) });
  }
}

/** So many layers on the GPU, with the experts that were asked for. */
function asAsked(request: PlanRequest, count: number): { readonly count: number; readonly experts?: ExpertChoice } {
  return { count, experts: expertChoice(request, count) };
}

/**
 * The plan of a model cut between devices, in the order of its layers; no device has two parts.
 * @throws as {@link plan}
 */
export function planParts(request: PlanRequest, cuts: readonly Cut[], { reason, experts }: Placing = {}): Plan {
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
    threads: Math.max(...parts.map(({ placer, request: own }) => placer.threads(own))),
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
    weights: placed.flatMap(({ weights }) => weights),
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

/** What all parts share, the slots of split experts among it: as many as were asked for, or as the GPU's memory has left. */
function sharedWith(request: PlanRequest, parts: readonly Part[], split: ExpertChoice | undefined): Shared {
  const shared = sharedBy(request, parts);
  if (split === undefined) return shared;
  const given = { request, promptRows: shared.promptRows, largest: bindsAtOnce(request) };
  const [part] = parts as [Part];
  const { memoryBytes } = part;
  if (split.size !== undefined || memoryBytes === undefined) {
    return { ...shared, experts: planExperts(split, { ...given, budget: Number.POSITIVE_INFINITY }) };
  }
  // More slots may take more slabs, and these have a part that is no cache: what is too much is taken from the budget again.
  let budget = memoryBytes;
  for (;;) {
    const tried = { ...shared, experts: planExperts(split, { ...given, budget }) };
    const over = placePart(part, tried, chooseRows(part, tried), hopedContext(request)).total - memoryBytes;
    if (over <= 0 || budget === 0) return tried;
    budget = Math.max(0, budget - over);
  }
}

/**
 * What the GPU takes, in its memory as far as a budget says how much that is, and in what it binds at once: all layers with all
 * of their experts; else, of a model with experts that can be computed apart, all layers with some of them; else the most
 * layers, from the first on.
 * @throws OutOfMemoryError `out_of_memory` when it is not even one layer
 */
function whatFits(request: PlanRequest): { readonly count: number; readonly experts?: ExpertChoice } {
  const layers = request.spec.layers.length;
  let failure: OutOfMemoryError | undefined;
  const fits = (count: number, experts?: ExpertChoice): boolean => {
    const parts = partsOf(request, cutsFor(count, layers, experts?.layers));
    const part = parts[0] as Part;
    try {
      const context = hopedContext(request);
      const shared = sharedWith(request, parts, experts);
      const placed = placePart(part, shared, chooseRows(part, shared), context);
      failure = placed.total <= (part.memoryBytes ?? Infinity) ? undefined : doesNotFit(part, placed, context);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      failure = error;
    }
    return failure === undefined;
  };
  const asked = (count: number) => expertChoice(request, count);
  if (fits(layers, asked(layers))) return { count: layers, experts: asked(layers) };
  if (asked(layers) === undefined) {
    const blocks = request.spec.layers.map(({ feedForward }) => feedForward);
    const split = blocks.flatMap(({ kind }, layer) => (kind === 'moe' ? [layer] : []));
    const apart = blocks.every((block) => block.kind !== 'moe' || canBeApart(block.moe));
    const experts: ExpertChoice = { layers: split, policy: 'slru' };
    if (apart && split.length > 0 && fits(layers, experts)) return { count: layers, experts };
  }
  const fitting = (count: number) => fits(count, hasExperts(request, count) ? asked(count) : undefined);
  let most = 0;
  for (let over = layers; over - most > 1; ) {
    const count = (most + over) >> 1;
    if (fitting(count)) most = count;
    else over = count;
  }
  // What was tried last is then one layer.
  if (most === 0 && failure !== undefined) throw failure;
  return { count: most, experts: hasExperts(request, most) ? asked(most) : undefined };
}

/** Whether one of the first `count` layers has experts. */
function hasExperts({ spec }: PlanRequest, count: number): boolean {
  return spec.layers.slice(0, count).some(({ feedForward }) => feedForward.kind === 'moe');
}

/** Whether every kernel of the GPU stays within its bounds by itself. */
function runsUnchecked(chosen: readonly Chosen[]): boolean {
  return chosen
    .flatMap(({ rows }) => [...rows.prompt, ...rows.step])
    .every(({ device, unchecked }) => device !== 'gpu' || unchecked === true);
}

/** What decoding one token reads of the weights: every matrix that is multiplied, of routed experts the used share. */
function bytesPerToken(graph: Graph, weights: Weights): number {
  let bytes = 0;
  const size = (name: string) => weights.get(name)?.bytes ?? 0;
  for (const operation of graph.operations) {
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
