/** The CPU: weights in arenas as `backend/cpu/layout.ts` lays them out. */

import { PAGE_ROWS } from '../../backend/backend.ts';
import { layOut, MAX_ARENA_BYTES } from '../../backend/cpu/layout.ts';
import type { CpuRow } from '../../backend/cpu/row.ts';
import { cpuRows } from '../../backend/cpu/rows.ts';
import { type CacheType, MAX_STEP_ROWS } from '../../backend/kernel.ts';
import { UsageError } from '../../errors.ts';
import {
  cacheBytesOf,
  DEFAULT_BATCH,
  type Placed,
  type PlaceRequest,
  type Placer,
  type PlanRequest,
  pagesFor,
} from '../placer.ts';
import type { PlannedBuffer, PlannedExperts, PlannedWeight, PlanOptions } from '../plan.ts';

export const cpuPlacer: Placer = {
  rows: cpuRows,
  features: ({ platform }) => platform.features,
  threads,
  defaultCache,
  promptRows: ({ options }) => options.batch ?? DEFAULT_BATCH,
  memoryBytes: ({ options, platform }) => options.memoryBytes ?? platform.freeMemoryBytes,
  place,
};

/** Cores that a machine of many leaves to the engine's thread and the GPU's driver where they work beside the pool. */
const LEFT_BESIDE_GPU = 2;
const MANY_CORES = 8;
/**
 * The more experts have slots, the less the pool has to compute and the more its waiting hinders the others: of 16 cores 14 were
 * best where none has a slot, 10 with slots for a quarter and 8 with slots for half (`bench/README.md`).
 */
const LEFT_BY_SLOTS = 0.75;

function threads({ options, platform, graph }: PlanRequest, experts?: PlannedExperts): number {
  const cores = platform.threads;
  const beside = cores >= MANY_CORES && graph.operations.some(({ kind }) => kind === 'experts');
  if (options.threads !== undefined || !beside) return options.threads ?? cores;
  const share = experts === undefined ? 0 : experts.slots / experts.experts;
  return Math.max(Math.ceil(cores / 2), cores - LEFT_BESIDE_GPU - Math.round(LEFT_BY_SLOTS * share * cores));
}

/** f32 while that is a small part of what the model takes anyway (half of its weights), else f16. */
function defaultCache(request: PlanRequest, context: number): CacheType {
  const { weights, options } = request;
  let weightBytes = 0;
  for (const { bytes } of weights.values()) weightBytes += bytes;
  return cacheBytesOf(request, pagesFor(context, options) * PAGE_ROWS, 4) <= weightBytes / 2 ? 'f32' : 'f16';
}

/** @throws UsageError `usage` for more than a WebAssembly memory holds */
export function arenaLimit(options: PlanOptions): number {
  const limit = options.arenaBytes ?? MAX_ARENA_BYTES;
  if (limit > MAX_ARENA_BYTES) {
    throw new UsageError(`arenaBytes: found ${limit}, and one WebAssembly memory holds at most ${MAX_ARENA_BYTES}`);
  }
  return limit;
}

function place({ request, context, cacheType, promptRows, rows, experts }: PlaceRequest): Placed {
  const { spec, graph, weights, options } = request;
  const program = layOut({
    spec,
    graph,
    weights,
    context,
    cacheType,
    promptRows,
    rows: rows.step as readonly CpuRow[],
    threads: threads(request, experts),
    pages: pagesFor(context, options),
    wantedRows: MAX_STEP_ROWS,
    arenaBytes: arenaLimit(options),
    expertPairs: experts?.hostPairs,
  });
  const planned = [...weights.values()].map((weight): PlannedWeight => {
    const { arena, bytes } = program.weights[weight.name] as { arena: number; bytes: number };
    const layout = weight.shape.length < 2 ? undefined : 'interleave4';
    return { name: weight.name, format: weight.format, shape: weight.shape, bytes, device: 'cpu', layout, arena };
  });
  const sizes = new Map(program.buffers.map(({ name, bytes }) => [name, bytes]));
  const weightBytes = planned.reduce((sum, { bytes }) => sum + bytes, 0);
  const cacheBytes = sizes.get('cache') ?? 0;
  const total = program.arenas.reduce((sum, bytes) => sum + bytes, 0);
  const buffers = program.buffers
    .filter(({ name }) => name !== 'cache' && name !== 'weights')
    .map(
      ({ name, bytes }): PlannedBuffer => ({
        name,
        bytes,
        device: 'cpu',
        lifetime: name === 'rope tables' ? 'model' : 'step',
      }),
    );
  return {
    arenas: program.arenas,
    weights: planned,
    buffers,
    weightBytes,
    cacheBytes,
    bufferBytes: total - weightBytes - cacheBytes,
    total,
    program,
  };
}
