/** Places every operation, picks every kernel, sizes every buffer, or refuses; before a weight is read. */

import { PAGE_ROWS } from '../backend/backend.ts';
import { type CacheType, type KernelRequest, type KernelRow, MAX_STEP_ROWS, type Mode } from '../backend/kernel.ts';
import { OutOfMemoryError, Refusal } from '../errors.ts';
import { cutGraph, expertWeights, weightsOfGraph } from '../model/cut.ts';
import type { Graph, Operation, WeightName } from '../model/graph.ts';
import type { Weights } from '../model/weights.ts';
import { adapterNumber, gpuUse, placementFor, reasonOf } from './devices.ts';
import { type Placed, type Placer, type PlanRequest, pagesFor } from './placer.ts';
import { arenaLimit, cpuPlacer } from './placers/cpu.ts';
import { gpuPlacer } from './placers/gpu.ts';
import { referencePlacer } from './placers/reference.ts';
import type { DeviceName, Plan, PlannedOperation } from './plan.ts';
import { select } from './select.ts';
import { showBytes, showCount, showPlural } from './show.ts';

export type { PlanRequest } from './placer.ts';

/** The context that a model gets where nobody asks for one, at the most. */
const DEFAULT_CONTEXT = 8192;
/** A default context is not cut below this for want of memory. */
const LEAST_DEFAULT_CONTEXT = 512;

const placers: Readonly<Record<DeviceName, Placer>> = { cpu: cpuPlacer, gpu: gpuPlacer, reference: referencePlacer };

/** Layers up to, not including, `end` on a device; the next part goes on from there. */
export interface Cut {
  readonly device: DeviceName;
  readonly end: number;
}

/** A part of the model on its way to be planned: a request of its own, for its device. */
interface Part extends Cut {
  readonly first: number;
  readonly placer: Placer;
  /** With the part's graph and weights. */
  readonly request: PlanRequest;
  readonly features: ReadonlySet<string>;
  readonly memoryBytes: number | undefined;
}

/** Holds of every part of a plan. */
interface Shared {
  readonly cacheType: CacheType;
  readonly promptRows: number;
}

/**
 * @throws Refusal `refused` naming each kernel row tried; OutOfMemoryError `out_of_memory` when the model does not fit;
 * UsageError `usage` for a value that no plan can hold. With device `auto` what the GPU refuses goes to the CPU.
 */
export function plan(request: PlanRequest): Plan {
  const { options, platform, spec } = request;
  const { device, gpuLayers, reason } = placementFor(options, platform);
  const layers = spec.layers.length;
  if (device !== 'gpu') return planParts(request, [{ device, end: layers }], reason);
  try {
    return planParts(request, cutsFor(gpuLayers === 'auto' ? layersThatFit(request) : gpuLayers, layers));
  } catch (error) {
    if (gpuUse(options) !== 'auto' || !(error instanceof Refusal || error instanceof OutOfMemoryError)) throw error;
    return planParts(request, [{ device: 'cpu', end: layers }], reasonOf(error));
  }
}

/**
 * The plan of a model cut between devices, in the order of its layers; no device has two parts.
 * @param reason why it is not the device that was hoped for
 * @throws as {@link plan}
 */
export function planParts(request: PlanRequest, cuts: readonly Cut[], reason?: string): Plan {
  const { spec, options, platform } = request;
  const hopedFor = hopedContext(request);
  const parts = partsOf(request, cuts);
  const shared = sharedBy(request, parts);
  const { cacheType, promptRows } = shared;
  const chosen = parts.map((part) => chooseRows(part, shared));
  const { context, contextReason, placed } = chooseContext({
    request,
    hopedFor,
    parts,
    place: (length) => parts.map((part, index) => placePart(part, shared, chosen[index] as Chosen, length)),
  });
  const sum = (of: (each: Placed) => number) => placed.reduce((total, each) => total + of(each), 0);
  const main = parts.find((part) => part.device === 'gpu') ?? (parts[0] as Part);
  const made: Plan = {
    architecture: spec.architecture,
    device: main.device,
    deviceReason: reason,
    parts: parts.map(({ device, first, end, features, memoryBytes }, index) => ({
      device,
      first,
      end,
      features: [...features].sort(),
      bytes: bytesOf(placed[index] as Placed),
      memoryBytes,
    })),
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
    reproducible: true,
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

/** The first `count` layers on the GPU, the rest on the CPU. */
function cutsFor(count: number, layers: number): readonly Cut[] {
  const whole = { device: 'gpu', end: layers } as const;
  return count >= layers
    ? [whole]
    : [
        { device: 'gpu', end: count },
        { ...whole, device: 'cpu' },
      ];
}

function partsOf(request: PlanRequest, cuts: readonly Cut[]): readonly Part[] {
  const graphs = cutGraph(
    request.graph,
    cuts.slice(0, -1).map(({ end }) => end),
  );
  return cuts.map(({ device, end }, index): Part => {
    const cut = graphs[index] as Graph;
    const placer = placers[device];
    const own: PlanRequest = {
      ...request,
      graph: placer.rewrite?.(cut) ?? cut,
      weights: cuts.length === 1 ? request.weights : weightsOfGraph(cut, request.weights),
    };
    return {
      device,
      first: cuts[index - 1]?.end ?? 0,
      end,
      placer,
      request: own,
      features: placer.features(own),
      memoryBytes: placer.memoryBytes(own),
    };
  });
}

/** What a run brings and a page holds is the same for all parts: as much as each of them takes. */
function sharedBy(request: PlanRequest, parts: readonly Part[]): Shared {
  const small = parts.every(({ placer }) => placer.defaultCache(request, hopedContext(request)) === 'f32');
  return {
    cacheType: request.options.cache ?? (small ? 'f32' : 'f16'),
    promptRows: Math.min(...parts.map(({ placer, request: own }) => placer.promptRows(own))),
  };
}

/**
 * The most layers, from the first on, that the GPU takes: in its memory as far as a budget says how much that is, and in
 * what it binds at once.
 * @throws OutOfMemoryError `out_of_memory` when it is not even one
 */
function layersThatFit(request: PlanRequest): number {
  const layers = request.spec.layers.length;
  let failure: OutOfMemoryError | undefined;
  const fits = (count: number): boolean => {
    const parts = partsOf(request, cutsFor(count, layers));
    const part = parts[0] as Part;
    const shared = sharedBy(request, parts);
    try {
      const context = hopedContext(request);
      const placed = placePart(part, shared, chooseRows(part, shared), context);
      failure = placed.total <= (part.memoryBytes ?? Infinity) ? undefined : doesNotFit(part, placed, context);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      failure = error;
    }
    return failure === undefined;
  };
  if (fits(layers)) return layers;
  let most = 0;
  for (let over = layers; over - most > 1; ) {
    const count = (most + over) >> 1;
    if (fits(count)) most = count;
    else over = count;
  }
  // What was tried last is then one layer.
  if (most === 0 && failure !== undefined) throw failure;
  return most;
}

interface Chosen {
  readonly operations: readonly PlannedOperation[];
  readonly rows: Readonly<Record<Mode, readonly KernelRow[]>>;
}

/** Whether every kernel of the GPU stays within its bounds by itself. */
function runsUnchecked(chosen: readonly Chosen[]): boolean {
  return chosen
    .flatMap(({ rows }) => [...rows.prompt, ...rows.step])
    .every(({ device, unchecked }) => device !== 'gpu' || unchecked === true);
}

function placePart({ placer, request }: Part, shared: Shared, { rows }: Chosen, context: number): Placed {
  return placer.place({ request, context, ...shared, rows });
}

function chooseRows({ request, device, placer, features }: Part, { cacheType, promptRows }: Shared): Chosen {
  const { graph, weights } = request;
  const rows: Record<Mode, KernelRow[]> = { prompt: [], step: [] };
  const choose = (operation: Operation, mode: Mode): string => {
    const asked: KernelRequest = {
      operation,
      mode,
      rows: mode === 'prompt' ? promptRows : MAX_STEP_ROWS,
      weights: weightsOf(operation, weights),
      widths: graph.widths,
      cache: cacheType,
      features,
    };
    const row = select(placer.rows, asked);
    rows[mode].push(row);
    return row.name;
  };
  const operations = graph.operations.map((operation): PlannedOperation => {
    const { layer, kind, output } = operation;
    return {
      layer,
      kind,
      output,
      device,
      rows: { prompt: choose(operation, 'prompt'), step: choose(operation, 'step') },
    };
  });
  return { operations, rows };
}

function weightNamesOf(operation: Operation, weights: Weights): WeightName[] {
  switch (operation.kind) {
    case 'moe': {
      const own = [...weights.keys()].filter((name) => name.startsWith(`${operation.prefix}.`));
      return operation.norm === undefined ? own : [operation.norm.weight, ...own];
    }
    case 'experts':
      return [...expertWeights(operation)];
    case 'project':
      return [operation.norm?.weight, ...operation.parts.map(({ weight }) => weight)].filter(isName);
    case 'gated':
      return [operation.norm?.weight, operation.gate, operation.up].filter(isName);
    case 'rotate':
      return [operation.queryNorm?.weight, operation.keyNorm?.weight].filter(isName);
    default:
      return 'weight' in operation ? [operation.weight] : [];
  }
}

const isName = (name: WeightName | undefined) => name !== undefined;

/** Every weight that an operation names, with its format and shape. */
export function weightsOf(operation: Operation, weights: Weights): KernelRequest['weights'] {
  return Object.fromEntries(
    weightNamesOf(operation, weights).flatMap((name) => {
      const weight = weights.get(name);
      return weight === undefined ? [] : [[name, { format: weight.format, shape: weight.shape }]];
    }),
  );
}

/** The context of a plan whose memory is not short. */
function hopedContext({ spec, options }: PlanRequest): number {
  return options.context ?? Math.min(spec.trainedContext, DEFAULT_CONTEXT);
}

function chooseContext(given: {
  readonly request: PlanRequest;
  readonly hopedFor: number;
  readonly parts: readonly Part[];
  readonly place: (context: number) => readonly Placed[];
}): { readonly context: number; readonly contextReason: string; readonly placed: readonly Placed[] } {
  const { request, hopedFor, parts, place } = given;
  const { spec, options } = request;
  const tooLarge = (placed: readonly Placed[]) =>
    parts.findIndex(({ memoryBytes = Infinity }, index) => (placed[index] as Placed).total > memoryBytes);
  const refuse = (context: number, placed: readonly Placed[]) => {
    const index = tooLarge(placed);
    return doesNotFit(parts[index] as Part, placed[index] as Placed, context);
  };
  const placed = place(hopedFor);
  const fits = tooLarge(placed) < 0;
  if (options.context !== undefined) {
    if (!fits) throw refuse(hopedFor, placed);
    const beyond =
      hopedFor > spec.trainedContext ? `, beyond the ${showCount(spec.trainedContext)} it was trained with` : '';
    return { context: hopedFor, contextReason: `as asked for${beyond}`, placed };
  }
  if (fits) {
    const contextReason =
      hopedFor === spec.trainedContext
        ? 'the length the model was trained with'
        : `the default; trained with ${showCount(spec.trainedContext)}`;
    return { context: hopedFor, contextReason, placed };
  }
  // Only the cache (and rope tables) grow with the context: cut it in halves until all fits.
  for (
    let context = PAGE_ROWS * Math.floor(hopedFor / 2 / PAGE_ROWS);
    context >= LEAST_DEFAULT_CONTEXT;
    context = PAGE_ROWS * Math.floor(context / 2 / PAGE_ROWS)
  ) {
    const smaller = place(context);
    if (tooLarge(smaller) >= 0) continue;
    const limits = parts.flatMap(({ memoryBytes }) => (memoryBytes === undefined ? [] : [showBytes(memoryBytes)]));
    return { context, contextReason: `what fits in ${limits.join(' and ')}`, placed: smaller };
  }
  const least = Math.min(hopedFor, LEAST_DEFAULT_CONTEXT);
  throw refuse(least, place(least));
}

function doesNotFit(part: Part, placed: Placed, context: number): OutOfMemoryError {
  const { weightBytes, cacheBytes, bufferBytes, total } = placed;
  const { device, first, end, memoryBytes = Infinity, request } = part;
  const whole = end - first === request.spec.layers.length;
  const what = whole
    ? 'the model does'
    : `${end - first === 1 ? `layer ${first} does` : `layers ${first} to ${end - 1} do`}`;
  const [where, todo] =
    device === 'gpu'
      ? [
          ' on the GPU',
          `allow more (--gpu-memory), use a shorter context, or ${end === 1 ? 'use --device cpu' : 'give it fewer layers (-g N or auto)'}`,
        ]
      : ['', 'choose a smaller model or a shorter context, or allow more memory'];
  return new OutOfMemoryError(
    `${what} not fit${where}: ${showBytes(weightBytes)} of weights, ${showBytes(cacheBytes)} of cache for ` +
      `${showPlural(context, 'token')} and ${showBytes(bufferBytes)} of buffers make ${showBytes(total)}, and ` +
      `${showBytes(memoryBytes)} may be used; ${todo}`,
    { data: { needed: total, available: memoryBytes, context, device } },
  );
}

/** What decoding one token reads of the weights: every matrix that is multiplied, of routed experts the used share. */
function bytesPerToken(graph: Graph, weights: Weights): number {
  let bytes = 0;
  const size = (name: string) => weights.get(name)?.bytes ?? 0;
  for (const operation of graph.operations) {
    if (operation.kind === 'moe' || operation.kind === 'experts') {
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
