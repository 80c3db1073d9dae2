/** Attention: keys and values into the layer's pages, then each row's queries against what it sees. */

import { firstVisible, temperatureAt } from '../../../model/attention.ts';
import type { AttentionOperation } from '../../../model/graph.ts';
import type { ReachSpec, TemperatureSpec } from '../../../model/spec.ts';
import { PAGE_ROWS } from '../../backend.ts';
import type { CacheType } from '../../kernel.ts';
import { Fault } from '../control.ts';
import type { CachePlace, Place, StepPlaces, Task } from '../program.ts';
import type { CpuRow } from '../row.ts';
import type { Arena, KernelCall, RunningTask, WorkerView } from '../task.ts';
import { rowOf } from './row-task.ts';
import { f16Tolerance, f32Tolerance } from './tolerances.ts';

/** Query vectors a unit takes at most: they share the keys and values of a page. Query heads beyond that are other units. */
const UNIT_QUERIES = 32;

export const attentionRows: readonly CpuRow[] = (['f16', 'f32'] as const).map(
  (cache): CpuRow => ({
    name: `attention-${cache}`,
    device: 'cpu',
    operation: 'attention',
    modes: ['prompt', 'step'],
    serves: [
      'a window of attention',
      'chunks of attention',
      'attention sinks',
      'attention temperature',
      'values that are the beginnings of their keys',
    ],
    tolerance: cache === 'f16' ? f16Tolerance : f32Tolerance,
    accepts(request) {
      const { headDim, valueDim, heads, kvHeads } = request.operation as AttentionOperation;
      if (request.cache !== cache) return `keeps a cache of ${cache}, found ${request.cache}`;
      if (headDim % 4 !== 0 || valueDim % 4 !== 0) {
        return `needs heads in multiples of 4, found ${headDim} for keys and ${valueDim} for values`;
      }
      if (heads % kvHeads !== 0) return `needs query heads in multiples of key heads, found ${heads} and ${kvHeads}`;
      return true;
    },
    emit(made, builder) {
      const operation = made as AttentionOperation;
      const { layer, query, key, value, output, heads, kvHeads, headDim, valueDim, scale } = operation;
      const { reach, sinks, temperature } = operation;
      const width = builder.width(output);
      builder.declareValue(output, width);
      builder.emit({
        space: 'rows',
        reads: value === undefined ? [key] : [key, value],
        writes: ['cache'],
        cacheLayer: layer,
        scratch: Math.max(headDim, valueDim) * 4,
        make: (at) => ({
          kind: 'store',
          key: at.value(key),
          value: value === undefined ? undefined : at.value(value),
          cache: at.cache(layer),
          step: at.step,
          kvHeads,
          headDim,
          valueDim,
          type: cache,
          layer,
        }),
      });
      const pages = (builder.cachePages + 1) * 4;
      builder.emit({
        space: 'units',
        reads: [query, 'cache'],
        writes: [output],
        cacheLayer: layer,
        scratch:
          UNIT_QUERIES * (3 * 4 + 8 + (headDim + valueDim) * 4) + PAGE_ROWS * (headDim + valueDim + 2) * 4 + pages + 64,
        make: (at): AttendTask => ({
          kind: 'attend',
          query: at.value(query),
          output: at.value(output),
          cache: at.cache(layer),
          step: at.step,
          heads,
          kvHeads,
          headDim,
          valueDim,
          joint: value === undefined,
          scale,
          reach,
          temperature,
          sinks: sinks === undefined ? 0 : at.weight(sinks).offset,
          type: cache,
          pagesBytes: pages,
        }),
      });
      builder.encode(output, width);
    },
  }),
);

interface AttendTask extends Task {
  readonly query: Place;
  readonly output: Place;
  readonly cache: CachePlace;
  readonly step: StepPlaces;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  /** Whether values are the beginnings of their keys. */
  readonly joint: boolean;
  readonly scale: number;
  readonly reach?: ReachSpec;
  readonly temperature?: TemperatureSpec;
  /** Address of the scores, one a head, that bring no value; or 0. */
  readonly sinks: number;
  readonly type: CacheType;
  readonly pagesBytes: number;
}

/** Writes a row's key and value heads to its page. */
export function makeStore(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly key: Place;
    readonly value: Place | undefined;
    readonly cache: CachePlace;
    readonly step: StepPlaces;
    readonly kvHeads: number;
    readonly headDim: number;
    readonly valueDim: number;
    readonly type: CacheType;
    readonly layer: number;
  };
  const { home } = worker;
  const arena = worker.arenas[task.cache.arena] as Arena;
  const storeCache = arena.kernels.storeCache as KernelCall;
  const half = task.type === 'f16' ? 1 : 0;
  const element = half ? 2 : 4;
  const put = (from: number, pageAt: number, slot: number, dim: number) => {
    for (let head = 0; head < task.kvHeads; head++) {
      let source = from + head * dim * 4;
      if (arena !== home) {
        arena.bytes.set(home.bytes.subarray(source, source + dim * 4), arena.scratch);
        source = arena.scratch;
      }
      const lost = storeCache(source, pageAt + (head * PAGE_ROWS + slot) * dim * element, dim, half);
      if (lost !== 0) worker.control.fault(Fault.cache, task.layer);
    }
  };
  return {
    units: () => 0,
    run(row) {
      const position = home.i32[task.step.positions / 4 + row] as number;
      const start = home.i32[task.step.pageStart / 4 + row] as number;
      const page = home.i32[task.step.pages / 4 + start + Math.floor(position / PAGE_ROWS)] as number;
      const slot = position % PAGE_ROWS;
      const { keys, values, keyPageBytes, valuePageBytes } = task.cache;
      put(rowOf(task.key, row), keys + page * keyPageBytes, slot, task.headDim);
      if (task.value !== undefined) put(rowOf(task.value, row), values + page * valuePageBytes, slot, task.valueDim);
    },
  };
}

/**
 * A unit is one key head and its query heads, for as many neighbouring rows of one sequence as fit; a step's rows are taken one
 * by one. Query heads are cut further where they do not fit, and where there are fewer units than workers: latents have one
 * key head. A query's arithmetic depends on what it sees itself only, so the cut changes no bit.
 */
export function makeAttend(data: Task, worker: WorkerView): RunningTask {
  const task = data as AttendTask;
  const { home } = worker;
  const arena = worker.arenas[task.cache.arena] as Arena;
  const attend = arena.kernels.attend as KernelCall;
  const { heads, kvHeads, headDim, valueDim, joint, scale, step, cache, reach, temperature, sinks } = task;
  const group = heads / kvHeads;
  const leastParts = Math.ceil(group / UNIT_QUERIES);
  // Two queries share the loads of keys and values.
  const mostParts = Math.max(leastParts, Math.ceil(group / 2));
  const tile = Math.max(1, Math.floor(UNIT_QUERIES / group));
  const half = task.type === 'f16' ? 1 : 0;
  const element = half ? 2 : 4;
  const queriesAt = align16(arena.scratch);
  const outAt = queriesAt + UNIT_QUERIES * headDim * 4;
  const limitsAt = outAt + UNIT_QUERIES * valueDim * 4;
  const firstsAt = limitsAt + UNIT_QUERIES * 4;
  const sinksAt = firstsAt + UNIT_QUERIES * 4;
  const pagesAt = sinksAt + UNIT_QUERIES * 4;
  const inside = align16(pagesAt + task.pagesBytes);
  const [values, valuePageBytes] = joint ? [cache.keys, cache.keyPageBytes] : [cache.values, cache.valuePageBytes];
  const runRows = (first: number, end: number, kvHead: number, firstHead: number, perHead: number) => {
    const bytes = perHead * headDim * 4;
    let query = 0;
    for (let row = first; row < end; row++) {
      const from = rowOf(task.query, row) + firstHead * headDim * 4;
      const to = queriesAt + (row - first) * bytes;
      arena.bytes.set(home.bytes.subarray(from, from + bytes), to);
      const visible = home.i32[step.limits / 4 + row] as number;
      if (temperature !== undefined) {
        (arena.kernels.scale as KernelCall)(to, to, temperatureAt(temperature, visible - 1), perHead * headDim);
      }
      const seenFrom = firstVisible(reach, visible - 1);
      for (let head = 0; head < perHead; head++, query++) {
        arena.i32[limitsAt / 4 + query] = visible;
        arena.i32[firstsAt / 4 + query] = seenFrom;
        if (sinks !== 0) arena.f32[sinksAt / 4 + query] = home.f32[sinks / 4 + firstHead + head] as number;
      }
    }
    const start = step.pages + (home.i32[step.pageStart / 4 + first] as number) * 4;
    const pages = Math.ceil((home.i32[step.limits / 4 + end - 1] as number) / PAGE_ROWS);
    arena.bytes.set(home.bytes.subarray(start, start + pages * 4), pagesAt);
    attend(
      queriesAt,
      (end - first) * perHead,
      scale,
      firstsAt,
      limitsAt,
      sinks === 0 ? 0 : sinksAt,
      pagesAt,
      cache.keys + kvHead * PAGE_ROWS * headDim * element,
      cache.keyPageBytes,
      values + kvHead * PAGE_ROWS * (joint ? headDim : valueDim) * element,
      valuePageBytes,
      headDim,
      valueDim,
      half,
      outAt,
      inside,
    );
    const width = perHead * valueDim * 4;
    for (let row = first; row < end; row++) {
      const result = outAt + (row - first) * width;
      home.bytes.set(arena.bytes.subarray(result, result + width), rowOf(task.output, row) + firstHead * valueDim * 4);
    }
  };
  const tiles = () => Math.ceil(worker.step.rows / tile);
  const parts = () => {
    const idle = Math.ceil(worker.control.threads / (tiles() * kvHeads));
    return Math.min(mostParts, Math.max(leastParts, idle));
  };
  return {
    units: () => tiles() * kvHeads * parts(),
    run(unit) {
      const kvHead = unit % kvHeads;
      const count = parts();
      const part = Math.floor(unit / kvHeads) % count;
      const first = Math.floor(unit / (kvHeads * count)) * tile;
      const begin = Math.floor((group * part) / count);
      const perHead = Math.floor((group * (part + 1)) / count) - begin;
      const end = Math.min(worker.step.rows, first + tile);
      const starts = step.pageStart / 4;
      for (let from = first, to = first + 1; from < end; from = to, to++) {
        while (to < end && home.i32[starts + to] === home.i32[starts + from]) to++;
        runRows(from, to, kvHead, kvHead * group + begin, perHead);
      }
    },
  };
}

function align16(address: number): number {
  return Math.ceil(address / 16) * 16;
}
