/**
 * Collects the tasks that kernel rows emit for a graph, orders them into stages, gives every buffer a place for the stages
 * in which it lives, and turns the result into a `CpuProgram`. Pure: the plan and the backend both call it and agree.
 */

import type { ExpertsOperation, Graph, Operation, ValueName, WeightName } from '../../model/graph.ts';
import type { ModelSpec, RopeSpec } from '../../model/spec.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import type { CacheType } from '../kernel.ts';
import { acceptsWeight, cpuFormat, type Encoding, encodedBlockBytes, groupBytes, groupsOf } from './formats.ts';
import type { CachePlace, ExpertsPlace, Place, RopePlace, Space, StepPlaces, Task, WeightPlace } from './program.ts';

/** What tasks ask for when every address is known. */
export interface Addresses {
  /** A value, or an encoded copy of one ({@link Builder.operand}). */
  value(name: ValueName): Place;
  buffer(name: string): Place;
  weight(name: WeightName): WeightPlace;
  cache(layer: number): CachePlace;
  rope(rope: RopeSpec): RopePlace;
  readonly step: StepPlaces;
}

export interface Emission {
  readonly space: Space;
  /** Names of values, encoded values and buffers. */
  readonly reads: readonly string[];
  readonly writes: readonly string[];
  /** Bytes of worker scratch in arena 0, and in each arena that holds one of `weights`. */
  readonly scratch?: number;
  readonly weights?: readonly WeightName[];
  /** A task over units that may have none in a run. */
  readonly optional?: boolean;
  /** Whose cache it works on: scratch is there too. */
  readonly cacheLayer?: number;
  make(at: Addresses): Task;
}

/** What stands before a section that is started by itself: what its caller writes first, and where that lies. */
export interface Entry {
  readonly layer: number;
  /** Names of what the caller writes, or has written, before the section runs. */
  readonly given: readonly string[];
  /** Bytes of scratch in arena 0 that the caller takes for it. */
  readonly scratch: number;
  make(at: Addresses): Omit<ExpertsPlace, 'layer' | 'section'>;
}

export interface BuiltStage {
  readonly section: number;
  readonly space: Space;
  readonly emissions: Emission[];
}

/** Rows that a product takes at a time: their activations and sums stay in the cache while many groups pass. */
export const ROW_BLOCK = 128;
/** Groups of four weight rows a unit of work. */
export const UNIT_GROUPS = 16;
/** A tall matrix is cut into longer units, since memory is read best in long runs, but into enough for every worker. */
const MAX_UNIT_GROUPS = 256;
const UNITS_A_WORKER = 16;

/** Groups a unit of a matrix of so many. */
export function unitGroupsOf(groups: number, threads: number): number {
  return Math.min(MAX_UNIT_GROUPS, Math.max(UNIT_GROUPS, Math.ceil(groups / (threads * UNITS_A_WORKER))));
}

function encodedName(name: ValueName, encoding: Encoding): string {
  return encoding === 'f32' ? name : `${name} (${encoding})`;
}

export class Builder {
  readonly graph: Graph;
  readonly spec: ModelSpec;
  readonly weights: Weights;
  /** Most rows of one run. */
  readonly rows: number;
  readonly wanted: number;
  readonly cacheType: CacheType;
  /** Pages that one sequence may have. */
  readonly cachePages: number;
  /** Most pairs of an `experts` operation. */
  readonly expertPairs: number;
  readonly stages: BuiltStage[] = [];
  /** Of the sections of experts, from 1 on, in order. */
  readonly entries: Entry[] = [];
  /** The section of what predicts further ahead, where it is emitted. */
  mtp: number | undefined;
  /** Bytes of everything in arena 0 that lives for some stages, and what a run of one row takes of them. */
  readonly bytes = new Map<string, number>();
  readonly bytesAlone = new Map<string, number>();
  /** Bytes between rows of everything declared as a value. */
  readonly strides = new Map<ValueName, number>();
  readonly #encodings = new Map<ValueName, Set<Encoding>>();
  #section = 0;

  constructor(options: {
    readonly graph: Graph;
    readonly spec: ModelSpec;
    readonly weights: Weights;
    readonly rows: number;
    readonly wanted: number;
    readonly cacheType: CacheType;
    readonly cachePages: number;
    readonly expertPairs: number;
  }) {
    this.graph = options.graph;
    this.spec = options.spec;
    this.weights = options.weights;
    this.rows = options.rows;
    this.wanted = options.wanted;
    this.cacheType = options.cacheType;
    this.cachePages = options.cachePages;
    this.expertPairs = options.expertPairs;
    for (const operation of options.graph.operations) {
      for (const { input, weight } of productsOf(operation)) {
        const wanted = this.#encodings.get(input) ?? new Set();
        this.#encodings.set(input, wanted.add(this.encoding(weight)));
      }
    }
  }

  weight(name: WeightName): Weight {
    const weight = this.weights.get(name);
    if (weight === undefined) throw new TypeError(`the graph names a weight that is not bound: ${name}`);
    return weight;
  }

  /** What a weight's kernel multiplies with. */
  encoding(weight: WeightName): Encoding {
    return cpuFormat(this.weight(weight).format)?.activations ?? 'f32';
  }

  /** The name of the copy of a value that a weight's kernel multiplies with. */
  operand(value: ValueName, weight: WeightName): ValueName {
    return encodedName(value, this.encoding(weight));
  }

  /** Bytes between its rows. */
  operandStride(weight: WeightName): number {
    return encodedStride(this.weight(weight).shape.at(-1) as number, this.encoding(weight));
  }

  width(name: ValueName): number {
    return this.graph.widths[name] as number;
  }

  /** Declares a value of the graph (or a matrix like one) of `width` f32 a row, and `each` rows for a row of the run. */
  declareValue(name: ValueName, width: number, rows = this.rows, each = 1): void {
    this.#declareRows(name, valueStride(width), rows, each);
  }

  /** Declares a value that is made as the copy that a weight's kernel multiplies with, and as nothing else. */
  declareOperand(name: ValueName, weight: WeightName, rows = this.rows, each = 1): void {
    this.#declareRows(name, this.operandStride(weight), rows, each);
  }

  /** Declares what {@link declareOperand} does for each head, heads side by side in a row. */
  declareHeads(name: ValueName, weight: WeightName, heads: number): void {
    this.#declareRows(name, heads * this.operandStride(weight), this.rows, 1);
  }

  declare(name: string, bytes: number, alone: number): void {
    this.bytes.set(name, bytes);
    this.bytesAlone.set(name, alone);
  }

  #declareRows(name: string, stride: number, rows: number, each: number): void {
    this.strides.set(name, stride);
    this.declare(name, rows * stride, each * stride);
  }

  /** Emits what makes the encoded copies of a value that products want. */
  encode(name: ValueName, width: number): void {
    for (const encoding of this.#encodings.get(name) ?? []) {
      if (encoding === 'f32') continue;
      const copy = encodedName(name, encoding);
      this.#declareRows(copy, encodedStride(width, encoding), this.rows, 1);
      this.emit({
        space: 'rows',
        reads: [name],
        writes: [copy],
        make: (at) => ({ kind: 'encode', input: at.value(name), output: at.value(copy), blocks: width / 32, encoding }),
      });
    }
  }

  /** Begins a section of its own: what is emitted from here on belongs to it. */
  enter(entry: Entry): void {
    this.entries.push(entry);
    this.#section++;
  }

  /** As {@link enter}, for what predicts further ahead: a run like that of the graph. */
  enterMtp(): void {
    this.mtp = ++this.#section;
  }

  /** How many sections there are. */
  get sections(): number {
    return this.#section + 1;
  }

  /** Puts a task behind those emitted before: into the last stage where that is sound, else into a new one. */
  emit(emission: Emission): void {
    const last = this.stages.at(-1);
    const section = this.#section;
    if (last !== undefined && last.space === emission.space && last.section === section) {
      // Rows are chained: whoever does a row does all of the chain. Units must not wait for each other.
      const written = new Set(last.emissions.flatMap(({ writes }) => writes));
      if (emission.space !== 'units' || !emission.reads.some((name) => written.has(name))) {
        last.emissions.push(emission);
        return;
      }
    }
    this.stages.push({ section, space: emission.space, emissions: [emission] });
  }
}

const ALIGNMENT = 64;

/** The next offset at which anything may lie. */
export function align(offset: number): number {
  return Math.ceil(offset / ALIGNMENT) * ALIGNMENT;
}

/** Bytes between rows of a value: whole groups of four, so that a product may write its last group in full. */
export function valueStride(width: number): number {
  return groupsOf(width) * 16;
}

function encodedStride(width: number, encoding: Encoding): number {
  return encoding === 'f32' ? valueStride(width) : (width / 32) * encodedBlockBytes[encoding];
}

/** Which values an operation multiplies with which weights; what it makes for itself in between is not counted. */
export function productsOf(operation: Operation): { readonly input: ValueName; readonly weight: WeightName }[] {
  switch (operation.kind) {
    case 'linear':
    case 'head':
      return [{ input: operation.input, weight: operation.weight }];
    case 'moe': {
      const { input, routerInput = input, prefix, moe } = operation;
      const names = ['gate', 'up'];
      if (moe.shared !== undefined) names.push('shared.gate', 'shared.up');
      if (moe.shared?.gated === true) names.push('shared.router');
      return [
        { input: routerInput, weight: `${prefix}.router` },
        ...names.map((name) => ({ input, weight: `${prefix}.${name}` })),
      ];
    }
    case 'experts': {
      const input = normedName(operation);
      return ['gate', 'up'].map((name) => ({ input, weight: `${operation.prefix}.${name}` }));
    }
    default:
      return [];
  }
}

/** What gate and up of single experts are multiplied with. */
export function normedName({ input, norm, output }: ExpertsOperation): ValueName {
  return norm === undefined ? input : `${output}.normed`;
}

/** Bytes of a weight at its home: matrices in whole groups, vectors as f32. */
export function homeBytes({ name, format, shape }: Weight): number {
  if (shape.length < 2) return (shape[0] as number) * 4;
  const columns = shape.at(-1) as number;
  if (acceptsWeight(name, format, columns) !== true) return 0;
  const matrices = shape.slice(0, -2).reduce((product, n) => product * n, 1);
  return matrices * groupsOf(shape.at(-2) as number) * groupBytes(format, columns);
}
