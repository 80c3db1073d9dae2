/** A plan's parts on their way to be planned: each a request of its own for its device, with kernels chosen and things placed. */

import type { CacheType, KernelRequest, KernelRow, Mode } from '../backend/kernel.ts';
import { MAX_STEP_ROWS } from '../backend/kernel.ts';
import { expertWeights, weightsOfGraph } from '../model/cut.ts';
import type { Graph, Operation, WeightName } from '../model/graph.ts';
import { graphsOfParts, type PartLayers, runsLayers } from '../model/part-graphs.ts';
import type { Weights } from '../model/weights.ts';
import { hopedContext, type Placed, type Placer, type PlanRequest } from './placer.ts';
import { cpuPlacer } from './placers/cpu.ts';
import { gpuPlacer } from './placers/gpu.ts';
import { referencePlacer } from './placers/reference.ts';
import type { DeviceName, PlannedExperts, PlannedOperation } from './plan.ts';
import { select } from './select.ts';

const placers: Readonly<Record<DeviceName, Placer>> = { cpu: cpuPlacer, gpu: gpuPlacer, reference: referencePlacer };

/** Layers up to, not including, `end` on a device; the next part goes on from there. */
export interface Cut extends Pick<PartLayers, 'split' | 'experts'> {
  readonly device: DeviceName;
  readonly end: number;
}

/** A part of the model on its way to be planned: a request of its own, for its device. */
export interface Part extends Cut {
  readonly first: number;
  readonly placer: Placer;
  /** With the part's graph and weights. */
  readonly request: PlanRequest;
  readonly features: ReadonlySet<string>;
  readonly memoryBytes: number | undefined;
}

/** What holds of every part of a plan. */
export interface Shared {
  readonly cacheType: CacheType;
  readonly promptRows: number;
  readonly experts?: PlannedExperts;
}

export interface Chosen {
  readonly operations: readonly PlannedOperation[];
  readonly rows: Readonly<Record<Mode, readonly KernelRow[]>>;
}

/**
 * The first `count` of `layers` layers on the GPU, the rest on the CPU.
 * @param split of these the layers whose experts the CPU computes as far as the GPU does not hold them
 */
export function cutsFor(count: number, layers: number, split?: readonly number[]): readonly Cut[] {
  const gpu: Cut = { device: 'gpu', end: Math.min(count, layers), split };
  return count >= layers && split === undefined ? [gpu] : [gpu, { device: 'cpu', end: layers, experts: split }];
}

export function partsOf(request: PlanRequest, cuts: readonly Cut[]): readonly Part[] {
  const ranges = cuts.map((cut, index) => ({ ...cut, first: cuts[index - 1]?.end ?? 0 }));
  const graphs = graphsOfParts(request.graph, ranges);
  return ranges.map((range, index): Part => {
    const cut = graphs[index] as Graph;
    const placer = placers[range.device];
    const own: PlanRequest = {
      ...request,
      graph: placer.rewrite?.(cut) ?? cut,
      weights: cuts.length === 1 ? request.weights : weightsOfGraph(cut, request.weights),
    };
    return {
      ...range,
      placer,
      request: own,
      features: placer.features(own),
      memoryBytes: placer.memoryBytes(own),
    };
  });
}

/** What a run brings and a page holds is the same for all parts: as much as each of them takes. */
export function sharedBy(request: PlanRequest, parts: readonly Part[]): Shared {
  const small = parts.every(({ placer }) => placer.defaultCache(request, hopedContext(request)) === 'f32');
  // A part that only computes experts takes what it is given.
  const running = parts.filter(runsLayers);
  return {
    cacheType: request.options.cache ?? (small ? 'f32' : 'f16'),
    promptRows: Math.min(...running.map(({ placer, request: own }) => placer.promptRows(own))),
  };
}

export function placePart({ placer, request }: Part, shared: Shared, { rows }: Chosen, context: number): Placed {
  return placer.place({ request, context, ...shared, rows });
}

export function chooseRows({ request, device, placer, features }: Part, { cacheType, promptRows }: Shared): Chosen {
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
    const { layer, kind, output, mtp } = operation;
    return {
      layer,
      ...(mtp === true ? { mtp } : {}),
      kind,
      output,
      device,
      rows: { prompt: choose(operation, 'prompt'), step: choose(operation, 'step') },
    };
  });
  return { operations, rows };
}

/** Names of the weights that an operation names, whether they are there or not. */
export function weightNamesOf(operation: Operation, weights: Weights): WeightName[] {
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
    case 'attention':
      return [operation.sinks].filter(isName);
    default:
      return 'weight' in operation ? [operation.weight].filter(isName) : [];
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
