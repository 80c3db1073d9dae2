/** Gives everything a program needs its place: buffers, cache and weights in arenas, scratch behind them. */

import { OutOfMemoryError } from '../../errors.ts';
import { cacheWidths } from '../../model/cache-widths.ts';
import { cachedLayersOf } from '../../model/cut.ts';
import type { ExpertsOperation, Graph, Operation } from '../../model/graph.ts';
import { allLayers, type ModelSpec, type RopeSpec } from '../../model/spec.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { PAGE_ROWS } from '../backend.ts';
import { expertsByLayer } from '../check-experts.ts';
import { type CacheType, MAX_STEP_ROWS } from '../kernel.ts';
import { type Addresses, align, Builder, homeBytes } from './builder.ts';
import { livesOf, madeByRows, placeBuffers } from './lives.ts';
import type { CachePlace, CpuProgram, Place, RopePlace, Stage, StepPlaces, WeightPlace } from './program.ts';
import type { CpuRow } from './row.ts';

/** The most one WebAssembly memory holds: 65,536 pages of 64 KiB, less one so that an end address fits in 32 bits. */
export const MAX_ARENA_BYTES = 65535 * 65536;
/** Nothing lies at the start of an arena: address 0 means absent. */
const FIRST_BYTE = 1024;
/** Between two stages nobody waits longer for others than this takes, unless they are not running. */
const SPIN_MS = 0.05;
/**
 * Beside another device the next command comes when that device has computed its part, 0.1 to 0.5 ms later; waking up takes
 * 0.1 ms more. Spinning longer than such a wait costs less than being late at each layer.
 */
const BESIDE_SPIN_MS = 1;
const LEAST_EXPERT_PAIRS = 2048;

export interface LayoutOptions {
  readonly spec: ModelSpec;
  readonly graph: Graph;
  /** The chosen row of each of the graph's operations. */
  readonly rows: readonly CpuRow[];
  readonly weights: Weights;
  readonly threads: number;
  readonly context: number;
  /** Pages of the cache, a layer. */
  readonly pages: number;
  readonly promptRows: number;
  readonly wantedRows: number;
  readonly cacheType: CacheType;
  readonly arenaBytes: number;
  /**
   * Most pairs of one `experts` operation; default: as many as 64 rows use, at least 2,048; never more than all rows of a run
   * use. A call of more is made in parts.
   */
  readonly expertPairs?: number;
}

/**
 * The program for a graph.
 * @throws OutOfMemoryError `out_of_memory` when something that cannot be cut is larger than an arena.
 */
export function layOut(options: LayoutOptions): CpuProgram {
  const { spec, graph, weights, threads, cacheType } = options;
  const rows = Math.max(options.promptRows, MAX_STEP_ROWS);
  const apart = expertsByLayer(graph);
  const expertPairs = expertPairsOf(options, [...apart.values()], rows);
  const builder = new Builder({
    graph,
    spec,
    weights,
    rows,
    wanted: options.wantedRows,
    cacheType,
    cachePages: pagesOf(options.context),
    expertPairs,
  });
  // The run of the graph, then a section for each layer of experts, then what predicts further ahead.
  const emit = (belongs: (operation: Operation) => boolean) =>
    graph.operations.forEach((operation, index) => {
      if (belongs(operation)) (options.rows[index] as CpuRow).emit(operation, builder);
    });
  emit(({ kind, mtp }) => kind !== 'experts' && mtp !== true);
  emit(({ kind }) => kind === 'experts');
  if (graph.mtp !== undefined) {
    builder.enterMtp();
    emit(({ mtp }) => mtp === true);
  }

  const arenas = new Arenas(Math.min(options.arenaBytes, MAX_ARENA_BYTES));
  const step: StepPlaces = {
    tokens: arenas.home('step', rows * 4),
    positions: arenas.home('step', rows * 4),
    limits: arenas.home('step', rows * 4),
    pageStart: arenas.home('step', rows * 4),
    pages: arenas.home('step', MAX_STEP_ROWS * pagesOf(options.context) * 4),
    wanted: arenas.home('step', options.wantedRows * 4),
    ...incomingPlace(graph, rows, arenas),
  };
  const ropes: RopePlace[] = [];
  const ropeIndex = new Map<string, RopePlace>();
  const lives = livesOf(builder);
  const buffers = placeBuffers(lives, builder.bytes);
  const base = arenas.home('activations', buffers.bytes);
  const byRows = madeByRows(builder);
  const own = new Map([...lives].filter(([name]) => byRows.has(name)));
  const alone = placeBuffers(own, builder.bytesAlone);
  for (const operation of graph.operations) {
    if (operation.kind === 'rope') ropePlace(operation.rope, options.context, arenas, ropes, ropeIndex);
  }
  arenas.reserve((align(mostScratch(builder)) + alone.bytes) * threads);
  const vectors = placeVectors(weights, arenas);
  const cache = placeCache(options, arenas);
  const placed = new Map([...vectors, ...placeMatrices(weights, arenas)]);

  const placeOf = (name: string) => ({ offset: base + found(buffers.offsets, name), alone: alone.offsets.get(name) });
  const at: Addresses = {
    value: (name) => ({ ...placeOf(name), stride: found(builder.strides, name) }),
    buffer: (name) => ({ ...placeOf(name), stride: 0 }),
    weight: (name) => found(placed, name),
    cache: (layer) => cache[layer] as CachePlace,
    rope: (rope) => ropePlace(rope, options.context, arenas, ropes, ropeIndex),
    step,
  };
  const scratch = new Map([[0, Math.max(0, ...builder.entries.map((entry) => entry.scratch))]]);
  const sections = Array.from({ length: builder.sections }, (): Stage[] => []);
  for (const { section, space, emissions } of builder.stages) {
    const tasks = emissions.map((emission) => {
      const need = emission.scratch ?? 0;
      const touched = [0, ...(emission.weights ?? []).map((name) => found(placed, name).arena)];
      if (emission.cacheLayer !== undefined) touched.push((cache[emission.cacheLayer] as CachePlace).arena);
      for (const arena of touched) scratch.set(arena, Math.max(scratch.get(arena) ?? 0, need));
      return emission.make(at);
    });
    (sections[section] as Stage[]).push({ space, tasks });
  }
  const scratchBytes = arenas.sizes.map((_, arena) => {
    const stored = [...weights.values()].filter(({ name }) => placed.get(name)?.arena === arena).map(storeScratch);
    const work = align(Math.max(scratch.get(arena) ?? 0, ...stored));
    return arena === 0 ? work + alone.bytes : work;
  });
  const scratchAt = arenas.sizes.map((_, arena) =>
    arenas.end(arena, 'scratch', (scratchBytes[arena] as number) * threads),
  );
  const values: Record<string, Place> = {};
  for (const { kind, output } of graph.operations) {
    if (kind !== 'experts' && buffers.offsets.has(output)) values[output] = at.value(output);
  }
  return {
    threads,
    arenas: arenas.sizes.map((size) => Math.ceil(size / 65536) * 65536),
    scratch: scratchAt,
    scratchBytes,
    aloneBytes: alone.bytes,
    spinMs: apart.size > 0 ? BESIDE_SPIN_MS : SPIN_MS,
    sections,
    mtp: builder.mtp,
    experts: builder.entries.map(({ layer, make }, index) => ({ layer, section: index + 1, ...make(at) })),
    expertLimits: { rows, pairs: expertPairs },
    weights: Object.fromEntries(placed),
    values,
    cache,
    step,
    ropes,
    buffers: [...arenas.totals].map(([name, bytes]) => ({ name, bytes })),
  };
}

function expertPairsOf(options: LayoutOptions, operations: readonly ExpertsOperation[], rows: number): number {
  const used = Math.max(0, ...operations.map(({ moe }) => moe.used));
  return Math.min(options.expertPairs ?? Math.max(MAX_STEP_ROWS * used, LEAST_EXPERT_PAIRS), rows * used);
}

function pagesOf(context: number): number {
  return Math.ceil(context / PAGE_ROWS);
}

/** Arenas filled one after the other; what cannot be cut goes to the first that has room. */
class Arenas {
  readonly sizes: number[] = [FIRST_BYTE];
  readonly totals = new Map<string, number>();
  readonly #limit: number;
  #reserved = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Keeps so many bytes of every arena free for what comes at its end. */
  reserve(bytes: number): void {
    this.#reserved = bytes;
  }

  /** In arena 0, which may grow past the limit that was asked for: activations have no other place. */
  home(what: string, bytes: number): number {
    return this.end(0, what, bytes);
  }

  end(arena: number, what: string, bytes: number): number {
    const offset = align(this.sizes[arena] as number);
    if (offset + bytes > MAX_ARENA_BYTES) {
      throw new OutOfMemoryError(
        `with ${what} an arena takes ${offset + bytes} bytes, and one WebAssembly memory holds at most ${MAX_ARENA_BYTES};` +
          ' ask for a shorter context or a smaller batch',
      );
    }
    this.sizes[arena] = offset + bytes;
    this.totals.set(what, (this.totals.get(what) ?? 0) + bytes);
    return offset;
  }

  any(what: string, name: string, bytes: number): { readonly arena: number; readonly offset: number } {
    if (bytes + FIRST_BYTE > MAX_ARENA_BYTES - this.#reserved) {
      throw new OutOfMemoryError(
        `${name} takes ${bytes} bytes, more than one WebAssembly memory holds (${MAX_ARENA_BYTES})`,
      );
    }
    const most = Math.min(this.#limit, MAX_ARENA_BYTES - this.#reserved);
    let arena = this.sizes.findIndex((size) => align(size) + bytes <= most);
    if (arena < 0) {
      arena = this.sizes.length;
      this.sizes.push(FIRST_BYTE);
    }
    return { arena, offset: this.end(arena, what, bytes) };
  }
}

function found<Value>(map: ReadonlyMap<string, Value>, name: string): Value {
  const value = map.get(name);
  if (value === undefined) throw new TypeError(`nothing was placed under the name ${name}`);
  return value;
}

function incomingPlace(graph: Graph, rows: number, arenas: Arenas): Pick<StepPlaces, 'incoming'> {
  // Of a run of the graph, and of what predicts further ahead: one at a time.
  const widths = graph.operations.flatMap(({ kind, output }) =>
    kind === 'incoming' ? [graph.widths[output] ?? 0] : [],
  );
  return widths.length === 0 ? {} : { incoming: arenas.home('step', rows * Math.max(...widths) * 4) };
}

/** The cache of a layer lies where the layer runs. */
function placeCache({ spec, graph, ...options }: LayoutOptions, arenas: Arenas): (CachePlace | undefined)[] {
  const element = options.cacheType === 'f16' ? 2 : 4;
  const layers = cachedLayersOf(graph);
  return allLayers(spec).map(({ attention }, layer) => {
    if (!layers.has(layer)) return undefined;
    const { keys, values } = cacheWidths(attention);
    const keyPageBytes = PAGE_ROWS * keys * element;
    const valuePageBytes = PAGE_ROWS * values * element;
    const bytes = options.pages * (keyPageBytes + valuePageBytes);
    const { arena, offset } = arenas.any('cache', `the cache of layer ${layer}`, bytes);
    return { arena, keys: offset, values: offset + options.pages * keyPageBytes, keyPageBytes, valuePageBytes };
  });
}

/** Vectors are read beside the activations. */
function placeVectors(weights: Weights, arenas: Arenas): [string, WeightPlace][] {
  return [...weights]
    .filter(([, { shape }]) => shape.length < 2)
    .map(([name, weight]) => {
      const bytes = homeBytes(weight);
      return [name, { arena: 0, offset: arenas.home('weights', bytes), bytes }];
    });
}

function placeMatrices(weights: Weights, arenas: Arenas): [string, WeightPlace][] {
  return [...weights]
    .filter(([, { shape }]) => shape.length >= 2)
    .map(([name, weight]) => {
      const bytes = homeBytes(weight);
      return [name, { ...arenas.any('weights', name, bytes), bytes }];
    });
}

/** Storing a weight takes four of its rows aside. */
function storeScratch({ shape, bytes }: Weight): number {
  const rows = shape.slice(0, -1).reduce((product, n) => product * n, 1);
  return shape.length < 2 ? 0 : Math.ceil((bytes / rows) * 4);
}

/** The most that any task, or storing any weight, takes of a worker's scratch. */
function mostScratch(builder: Builder): number {
  const tasks = builder.stages.flatMap(({ emissions }) => emissions.map(({ scratch = 0 }) => scratch));
  const entries = builder.entries.map(({ scratch }) => scratch);
  return Math.max(0, ...tasks, ...entries, ...[...builder.weights.values()].map(storeScratch));
}

function ropePlace(
  rope: RopeSpec,
  context: number,
  arenas: Arenas,
  ropes: RopePlace[],
  index: Map<string, RopePlace>,
): RopePlace {
  const key = JSON.stringify(rope);
  let place = index.get(key);
  if (place === undefined) {
    const pairs = rope.dimensions / 2;
    place = { offset: arenas.home('rope tables', context * pairs * 8), pairs, rope };
    index.set(key, place);
    ropes.push(place);
  }
  return place;
}
