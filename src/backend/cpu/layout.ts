/** Gives everything a program needs its place: buffers, cache and weights in arenas, scratch behind them. */

import { OutOfMemoryError } from '../../errors.ts';
import { cachedLayersOf } from '../../model/cut.ts';
import type { Graph } from '../../model/graph.ts';
import type { ModelSpec, RopeSpec } from '../../model/spec.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { PAGE_ROWS } from '../backend.ts';
import { type CacheType, MAX_STEP_ROWS } from '../kernel.ts';
import { type Addresses, Builder, homeBytes } from './builder.ts';
import type { CachePlace, CpuProgram, Place, RopePlace, StepPlaces, WeightPlace } from './program.ts';
import type { CpuRow } from './row.ts';

/** The most one WebAssembly memory holds: 65,536 pages of 64 KiB, less one so that an end address fits in 32 bits. */
export const MAX_ARENA_BYTES = 65535 * 65536;
/** Nothing lies at the start of an arena: address 0 means absent. */
const FIRST_BYTE = 1024;
const ALIGNMENT = 64;

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
}

/**
 * The program for a graph.
 * @throws OutOfMemoryError `out_of_memory` when something that cannot be cut is larger than an arena.
 */
export function layOut(options: LayoutOptions): CpuProgram {
  const { spec, graph, weights, threads, cacheType } = options;
  const rows = Math.max(options.promptRows, MAX_STEP_ROWS);
  const builder = new Builder({
    graph,
    spec,
    weights,
    rows,
    wanted: options.wantedRows,
    cacheType,
    cachePages: pagesOf(options.context),
  });
  graph.operations.forEach((operation, index) => {
    (options.rows[index] as CpuRow).emit(operation, builder);
  });

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
  const scratch = new Map<number, number>();
  const stages = builder.stages.map(({ space, emissions }) => ({
    space,
    tasks: emissions.map((emission) => {
      const need = emission.scratch ?? 0;
      const touched = [0, ...(emission.weights ?? []).map((name) => found(placed, name).arena)];
      if (emission.cacheLayer !== undefined) touched.push((cache[emission.cacheLayer] as CachePlace).arena);
      for (const arena of touched) scratch.set(arena, Math.max(scratch.get(arena) ?? 0, need));
      return emission.make(at);
    }),
  }));
  const scratchBytes = arenas.sizes.map((_, arena) => {
    const stored = [...weights.values()].filter(({ name }) => placed.get(name)?.arena === arena).map(storeScratch);
    const work = align(Math.max(scratch.get(arena) ?? 0, ...stored));
    return arena === 0 ? work + alone.bytes : work;
  });
  const scratchAt = arenas.sizes.map((_, arena) =>
    arenas.end(arena, 'scratch', (scratchBytes[arena] as number) * threads),
  );
  const values: Record<string, Place> = {};
  for (const name of Object.keys(graph.widths)) if (buffers.offsets.has(name)) values[name] = at.value(name);
  return {
    threads,
    arenas: arenas.sizes.map((size) => Math.ceil(size / 65536) * 65536),
    scratch: scratchAt,
    scratchBytes,
    aloneBytes: alone.bytes,
    stages,
    weights: Object.fromEntries(placed),
    values,
    cache,
    step,
    ropes,
    buffers: [...arenas.totals].map(([name, bytes]) => ({ name, bytes })),
  };
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

function align(offset: number): number {
  return Math.ceil(offset / ALIGNMENT) * ALIGNMENT;
}

function found<Value>(map: ReadonlyMap<string, Value>, name: string): Value {
  const value = map.get(name);
  if (value === undefined) throw new TypeError(`nothing was placed under the name ${name}`);
  return value;
}

interface Life {
  first: number;
  last: number;
}

/** The stages, first to last, in which each buffer must keep its bytes. */
function livesOf(builder: Builder): Map<string, Life> {
  const lives = new Map<string, Life>();
  builder.stages.forEach(({ emissions }, index) => {
    for (const { reads, writes } of emissions) {
      for (const name of [...reads, ...writes]) {
        if (!builder.bytes.has(name)) continue;
        const life = lives.get(name);
        if (life === undefined) lives.set(name, { first: index, last: index });
        else life.last = index;
      }
    }
  });
  // A run of one row has no barrier after its rows: what they touch lives until the next that is sure to come.
  const barriers = builder.stages.map(
    ({ space, emissions }) => space === 'units' && emissions.some(({ optional }) => optional !== true),
  );
  for (const life of lives.values()) {
    const next = barriers.indexOf(true, life.last);
    life.last = next < 0 ? builder.stages.length : next;
  }
  const outcome = lives.get(builder.graph.logits);
  if (outcome !== undefined) outcome.last = builder.stages.length;
  return lives;
}

/** Names of what is made row by row, of which each worker has a copy for runs of one row. */
function madeByRows(builder: Builder): Set<string> {
  const made = builder.stages.filter(({ space }) => space !== 'units').flatMap(({ emissions }) => emissions);
  return new Set(made.flatMap(({ writes }) => writes));
}

/**
 * Buffers whose lives do not meet may share bytes. The largest are placed first, each at the lowest place that is free for
 * its whole life.
 */
function placeBuffers(
  lives: ReadonlyMap<string, Life>,
  sizes: ReadonlyMap<string, number>,
): { readonly offsets: ReadonlyMap<string, number>; readonly bytes: number } {
  const order = [...lives].sort(([a], [b]) => found(sizes, b) - found(sizes, a));
  const placed: { first: number; last: number; from: number; to: number }[] = [];
  const offsets = new Map<string, number>();
  let height = 0;
  for (const [name, { first, last }] of order) {
    const bytes = align(found(sizes, name));
    const meets = placed.filter((other) => other.first <= last && first <= other.last).sort((a, b) => a.from - b.from);
    let from = 0;
    for (const other of meets) {
      if (from + bytes <= other.from) break;
      from = Math.max(from, other.to);
    }
    placed.push({ first, last, from, to: from + bytes });
    offsets.set(name, from);
    height = Math.max(height, from + bytes);
  }
  return { offsets, bytes: height };
}

function incomingPlace(graph: Graph, rows: number, arenas: Arenas): Pick<StepPlaces, 'incoming'> {
  const operation = graph.operations.find(({ kind }) => kind === 'incoming');
  if (operation === undefined) return {};
  return { incoming: arenas.home('step', rows * (graph.widths[operation.output] as number) * 4) };
}

/** The cache of a layer lies where the layer runs. */
function placeCache({ spec, graph, ...options }: LayoutOptions, arenas: Arenas): (CachePlace | undefined)[] {
  const element = options.cacheType === 'f16' ? 2 : 4;
  const layers = cachedLayersOf(graph);
  return spec.layers.map(({ attention }, layer) => {
    if (!layers.has(layer)) return undefined;
    const keyPageBytes = PAGE_ROWS * attention.kvHeads * attention.headDim * element;
    const valuePageBytes = PAGE_ROWS * attention.kvHeads * attention.valueDim * element;
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
  return Math.max(0, ...tasks, ...[...builder.weights.values()].map(storeScratch));
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
