/** What a device says of where things go: the row type of the table in `place.ts`, and what its files share. */

import { PAGE_ROWS } from '../backend/backend.ts';
import type { CacheType, KernelRow, Mode } from '../backend/kernel.ts';
import { cacheWidths } from '../model/cache-widths.ts';
import { cachedLayersOf } from '../model/cut.ts';
import type { Graph } from '../model/graph.ts';
import { allLayers, type ModelSpec } from '../model/spec.ts';
import type { Weights } from '../model/weights.ts';
import type { GpuFacts } from './devices.ts';
import type { Plan, PlannedBuffer, PlannedExperts, PlannedWeight, PlanOptions } from './plan.ts';

export interface PlanRequest {
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: Weights;
  readonly ignored: Plan['ignored'];
  readonly options: PlanOptions;
  readonly speculation?: Plan['speculation'];
  readonly platform: {
    readonly threads: number;
    readonly freeMemoryBytes: number;
    readonly features: ReadonlySet<string>;
  } & GpuFacts;
}

/** Sizes in bytes. */
export interface Placed {
  readonly arenas: readonly number[];
  readonly weights: readonly PlannedWeight[];
  readonly buffers: readonly PlannedBuffer[];
  readonly weightBytes: number;
  readonly cacheBytes: number;
  readonly bufferBytes: number;
  readonly total: number;
  /** The backend's own program, where placing makes one; plain data. */
  readonly program?: unknown;
}

export interface PlaceRequest {
  readonly request: PlanRequest;
  readonly context: number;
  readonly cacheType: CacheType;
  readonly promptRows: number;
  /** Where experts are split. */
  readonly experts?: PlannedExperts;
  /** The chosen row of each of the graph's operations. */
  readonly rows: Readonly<Record<Mode, readonly KernelRow[]>>;
}

export interface Placer {
  readonly rows: readonly KernelRow[];
  /** Rewrites the graph before kernels are chosen, where the device has operations of its own. */
  readonly rewrite?: (graph: Graph) => Graph;
  readonly features: (request: PlanRequest) => ReadonlySet<string>;
  /** @param experts where experts are split */
  readonly threads: (request: PlanRequest, experts?: PlannedExperts) => number;
  readonly defaultCache: (request: PlanRequest, context: number) => CacheType;
  /** Most rows of a prompt in one run. */
  readonly promptRows: (request: PlanRequest) => number;
  /** Bytes that may be used, where that is known. */
  readonly memoryBytes: (request: PlanRequest) => number | undefined;
  readonly place: (given: PlaceRequest) => Placed;
}

/** The context that a model gets where nobody asks for one, at the most. */
const DEFAULT_CONTEXT = 8192;

/** The context of a plan whose memory is not short. */
export function hopedContext({ spec, options }: PlanRequest): number {
  return options.context ?? Math.min(spec.trainedContext, DEFAULT_CONTEXT);
}

/** Rows of a prompt in one run where nobody asks for another number. */
export const DEFAULT_BATCH = 512;

/** Pages of the cache, a layer. */
export function pagesFor(context: number, options: PlanOptions): number {
  return Math.ceil(context / PAGE_ROWS) * (options.sessions ?? 1);
}

/** Bytes of keys and values of the graph's layers for `rows` positions, at `element` bytes each. */
export function cacheBytesOf(
  { spec, graph }: Pick<PlanRequest, 'spec' | 'graph'>,
  rows: number,
  element: number,
): number {
  const layers = cachedLayersOf(graph);
  return allLayers(spec).reduce((sum, { attention }, layer) => {
    const { keys, values } = cacheWidths(attention);
    return sum + (layers.has(layer) ? rows * (keys + values) * element : 0);
  }, 0);
}
