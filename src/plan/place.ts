/** Places every operation, picks every kernel, sizes every buffer, or refuses; before a weight is read. */

import { PAGE_ROWS } from '../backend/backend.ts';
import { type CacheType, type KernelRequest, type KernelRow, MAX_STEP_ROWS, type Mode } from '../backend/kernel.ts';
import { OutOfMemoryError } from '../errors.ts';
import type { Graph, Operation, WeightName } from '../model/graph.ts';
import type { Weights } from '../model/weights.ts';
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

/**
 * @throws Refusal `refused` naming each kernel row tried; OutOfMemoryError `out_of_memory` when the model does not fit;
 * UsageError `usage` for a value that no plan can hold.
 */
export function plan(asked: PlanRequest): Plan {
  const { spec, weights, options, platform } = asked;
  const device = options.device ?? 'cpu';
  const placer = placers[device];
  const graph = placer.rewrite?.(asked.graph) ?? asked.graph;
  const request: PlanRequest = { ...asked, graph };
  const hopedFor = options.context ?? Math.min(spec.trainedContext, DEFAULT_CONTEXT);
  const cacheType = options.cache ?? placer.defaultCache(request, hopedFor);
  const promptRows = placer.promptRows(request);
  const features = placer.features(request);
  const { operations, rows } = chooseRows({ request, device, placer, cacheType, promptRows, features });
  const memoryBytes = placer.memoryBytes(request);
  const { context, reason, placed } = chooseContext({
    request,
    memoryBytes,
    place: (length) => placer.place({ request, context: length, cacheType, promptRows, rows }),
  });
  const made: Plan = {
    architecture: spec.architecture,
    device,
    threads: placer.threads(request),
    features: [...features].sort(),
    adapter: device === 'gpu' ? platform.adapter?.name : undefined,
    context,
    contextReason: reason,
    maxRows: { prompt: promptRows, step: MAX_STEP_ROWS, wanted: MAX_STEP_ROWS },
    cache: { type: cacheType, pages: pagesFor(context, options), pageRows: PAGE_ROWS, bytes: placed.cacheBytes },
    arenas: placed.arenas,
    arenaBytes: arenaLimit(options),
    operations,
    weights: placed.weights,
    buffers: placed.buffers,
    ignored: request.ignored,
    bytes: { weights: placed.weightBytes, cache: placed.cacheBytes, buffers: placed.bufferBytes, total: placed.total },
    memoryBytes,
    bytesPerToken: bytesPerToken(graph, weights),
    reproducible: true,
  };
  programs.set(made, placed.program);
  return made;
}

/** What {@link programOf} gives; no part of the plan, which is for people and prints as JSON. */
const programs = new WeakMap<Plan, unknown>();

/** The backend's program that placing made for a plan, so that it need not be made again. */
export function programOf(plan: Plan): unknown {
  return programs.get(plan);
}

function chooseRows(given: {
  readonly request: PlanRequest;
  readonly device: DeviceName;
  readonly placer: Placer;
  readonly cacheType: CacheType;
  readonly promptRows: number;
  readonly features: ReadonlySet<string>;
}): { readonly operations: PlannedOperation[]; readonly rows: Record<Mode, KernelRow[]> } {
  const { request, device, placer, cacheType, promptRows, features } = given;
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

function chooseContext(given: {
  readonly request: PlanRequest;
  readonly memoryBytes: number | undefined;
  readonly place: (context: number) => Placed;
}): { readonly context: number; readonly reason: string; readonly placed: Placed } {
  const { request, place } = given;
  const memoryBytes = given.memoryBytes ?? Infinity;
  const { spec, options } = request;
  const asked = options.context;
  if (asked !== undefined) {
    const placed = place(asked);
    if (placed.total > memoryBytes) throw doesNotFit(placed, asked, memoryBytes);
    const beyond =
      asked > spec.trainedContext ? `, beyond the ${showCount(spec.trainedContext)} it was trained with` : '';
    return { context: asked, reason: `as asked for${beyond}`, placed };
  }
  const wanted = Math.min(spec.trainedContext, DEFAULT_CONTEXT);
  const reason =
    wanted === spec.trainedContext
      ? 'the length the model was trained with'
      : `the default; trained with ${showCount(spec.trainedContext)}`;
  const placed = place(wanted);
  if (placed.total <= memoryBytes) return { context: wanted, reason, placed };
  // Only the cache (and rope tables) grow with the context: cut it in halves until all fits.
  for (
    let context = PAGE_ROWS * Math.floor(wanted / 2 / PAGE_ROWS);
    context >= LEAST_DEFAULT_CONTEXT;
    context = PAGE_ROWS * Math.floor(context / 2 / PAGE_ROWS)
  ) {
    const smaller = place(context);
    if (smaller.total <= memoryBytes)
      return { context, reason: `what fits in ${showBytes(memoryBytes)}`, placed: smaller };
  }
  throw doesNotFit(
    place(Math.min(wanted, LEAST_DEFAULT_CONTEXT)),
    Math.min(wanted, LEAST_DEFAULT_CONTEXT),
    memoryBytes,
  );
}

function doesNotFit(placed: Placed, context: number, memoryBytes: number): OutOfMemoryError {
  return new OutOfMemoryError(
    `the model does not fit: ${showBytes(placed.weightBytes)} of weights, ${showBytes(placed.cacheBytes)} of cache for ` +
      `${showPlural(context, 'token')} and ${showBytes(placed.bufferBytes)} of buffers make ${showBytes(placed.total)}, and ` +
      `${showBytes(memoryBytes)} may be used; choose a smaller model or a shorter context, or allow more memory`,
    { data: { needed: placed.total, available: memoryBytes, context } },
  );
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
