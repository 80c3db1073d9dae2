/**
 * Collects the dispatches that kernel rows emit for a graph. Pure data and WGSL text: no device is touched, so the plan can
 * make the same program before there is one.
 */

import { InternalError } from '../../errors.ts';
import type { Graph, Operation, ValueName, WeightName } from '../../model/graph.ts';
import type { ModelSpec, RopeSpec } from '../../model/spec.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { type CacheType, MAX_STEP_ROWS, type Mode } from '../kernel.ts';
import { MAX_VOCABULARY, type SamplingLayout, samplingLayout } from './sampling-buffer.ts';
import { expertName, type Slab } from './slab.ts';
import { type StepLayout, stepLayout } from './step-buffer.ts';

/** What a dispatch may know of the run it is recorded for; its kernels read the rest from the step buffer. */
export interface RunShape {
  readonly rows: number;
  /** Rows whose logits are wanted. */
  readonly wanted: number;
  /** The most positions that a row of the run sees. */
  readonly visible: number;
  /** Whether each row is of a sequence of its own, so that no row sees what another one brings; absent: perhaps not. */
  readonly alone?: boolean;
  /** Of the wanted rows, the leading ones whose tokens are drawn on the device where their settings say so; absent: 0. */
  readonly drawn?: number;
  /** Whether some of these have penalties or biases; absent: none. */
  readonly adjusts?: boolean;
}

/** What stands at @group(0) @binding(i), in order. Everything but `write` is bound as `storage, read`. */
export type Binding =
  /** A value of the graph, or one declared by `declareValue`: f32 [rows, stride]. */
  | { readonly kind: 'value'; readonly name: ValueName; readonly access: 'read' | 'write' }
  /** A buffer of `declareBuffer`. */
  | { readonly kind: 'buffer'; readonly name: string; readonly access: 'read' | 'write' }
  /** A weight in its device layout (`formats.ts`); vectors are plain f32. */
  | { readonly kind: 'weight'; readonly name: WeightName }
  /** Keys or values of a layer's cache: [pages][kvHeads][PAGE_ROWS][dim], f32 or pairs of f16 in u32. */
  | {
      readonly kind: 'cache';
      readonly layer: number;
      readonly part: 'keys' | 'values';
      readonly access: 'read' | 'write';
    }
  /** Where a split layer's experts lie in its slab: u32 [experts], `ABSENT` where they do not. */
  | { readonly kind: 'slots'; readonly layer: number }
  /** Cosines and sines: f32 [context][2][pairs], cosines first. */
  | { readonly kind: 'rope'; readonly rope: RopeSpec }
  /** What changes from run to run (`step-buffer.ts`): array<u32>. */
  | { readonly kind: 'step' }
  /** What sampling keeps between runs (`sampling-buffer.ts`): array<u32>. */
  | {
      readonly kind: 'sampling';
      readonly part: 'settings' | 'slots' | 'drawn';
      readonly access: 'read' | 'write';
    };

export interface Dispatch {
  /** Shown by timing and errors: `layers.3.moe gate+up`. */
  readonly label: string;
  /** A whole WGSL module with the entry point `main`; equal texts share a pipeline. */
  readonly code: string;
  readonly bindings: readonly Binding[];
  /** Workgroups in x, y, z; any zero leaves the dispatch out. Each at most 65,535. */
  workgroups(run: RunShape): readonly [number, number, number];
}

/** A layer's choice of experts on the device. */
export interface Choice {
  readonly layer: number;
  /** [rows][routeWidth] u32, of which the first `used` are ids. */
  readonly route: string;
  readonly routeWidth: number;
}

/**
 * Where a layer's experts are split between devices. The run stops behind the choice of experts, for the host to read it; what
 * comes up to `joins` computes the experts in slots, and may run several times over with others in them; then the host brings
 * what was computed elsewhere. A run in which all of the layer's experts are in slots goes on without a stop.
 */
export interface Pause extends Choice {
  /** The first dispatch behind the choice. */
  readonly asks: number;
  /** The first dispatch that reads what the host brings. */
  readonly joins: number;
  /** What the experts elsewhere read: [rows, hidden], not normed. */
  readonly input: ValueName;
  /** Whether there are slots for all of the layer's experts. */
  readonly canBeWhole: boolean;
}

/**
 * Buffers that the host writes before a run goes on: the results' rows [pairs, hidden], and of each (row, rank) pair 1 + the
 * result that is its, or 0 where the device makes it.
 */
export const HOST_MADE = 'experts elsewhere';
export const HOST_PLACES = 'places of experts elsewhere';
/** In the place of a slot: there is none. */
export const ABSENT = 0xffffffff;

export class Builder {
  readonly graph: Graph;
  readonly spec: ModelSpec;
  readonly weights: Weights;
  /** Most rows of a run, of either mode. */
  readonly rows: number;
  readonly wanted: number;
  readonly context: number;
  readonly cacheType: CacheType;
  readonly features: ReadonlySet<string>;
  /** Where things stand in the step buffer, in words. */
  readonly step: StepLayout;
  /** What sampling keeps between runs. */
  readonly sampling: SamplingLayout;
  /** Whether tokens are drawn on the device: it has the whole model, of a vocabulary that the kernels of sampling take. */
  readonly draws: boolean;
  readonly dispatches: Readonly<Record<Mode, Dispatch[]>> = { prompt: [], step: [] };
  readonly pauses: Readonly<Record<Mode, Pause[]>> = { prompt: [], step: [] };
  /** Where the experts of split layers lie. */
  readonly slabs: readonly Slab[];
  /** Most results of the host's, a layer. */
  readonly hostPairs: number;
  /** Whether a split layer's choice is foreseen in steps, by its router on the layer before; and what was made for that. */
  readonly foresees: boolean;
  readonly foreseen: Choice[] = [];
  /** What is read when all of a run is over. */
  readonly kept = new Set<string>();
  /** Bytes of every value and buffer. */
  readonly bytes = new Map<string, number>();
  readonly #strides = new Map<ValueName, number>();
  readonly #unmade = new Map<string, (run: RunShape) => boolean>();

  constructor(options: {
    readonly graph: Graph;
    readonly spec: ModelSpec;
    readonly weights: Weights;
    readonly promptRows: number;
    readonly wanted: number;
    readonly context: number;
    readonly cacheType: CacheType;
    readonly features: ReadonlySet<string>;
    /** Requests whose penalties and biases the device holds at once; default: as many as a step has rows. */
    readonly slots?: number;
    readonly slabs?: readonly Slab[];
    readonly hostPairs?: number;
    readonly foresees?: boolean;
  }) {
    this.graph = options.graph;
    this.spec = options.spec;
    this.weights = options.weights;
    this.rows = Math.max(options.promptRows, MAX_STEP_ROWS);
    this.wanted = options.wanted;
    this.context = options.context;
    this.cacheType = options.cacheType;
    this.features = options.features;
    this.step = stepLayout(this.rows, options.wanted, options.context);
    this.sampling = samplingLayout({
      vocabulary: options.spec.vocabulary,
      context: options.context,
      rows: options.wanted,
      slots: options.slots ?? MAX_STEP_ROWS,
    });
    this.slabs = options.slabs ?? [];
    this.hostPairs = options.hostPairs ?? 0;
    this.foresees = options.foresees ?? false;
    this.draws = drawsTokens(options.graph, options.spec);
  }

  weight(name: WeightName): Weight {
    const weight = this.weights.get(name);
    if (weight === undefined) throw new InternalError(`the graph names a weight that is not bound: ${name}`);
    return weight;
  }

  /** f32 elements of a value of the graph, or of a declared one, a row. */
  width(name: ValueName): number {
    return this.graph.widths[name] ?? (this.#strides.get(name) as number);
  }

  /** Declares a value: `rows` rows (default: as many as a run has) of `width` f32, without gaps. Twice is once. */
  declareValue(name: ValueName, width: number, rows = this.rows): void {
    this.#strides.set(name, width);
    this.bytes.set(name, Math.max(rows * width * 4, this.bytes.get(name) ?? 0));
  }

  declareBuffer(name: string, bytes: number): void {
    this.bytes.set(name, Math.max(Math.ceil(bytes / 4) * 4, this.bytes.get(name) ?? 0));
  }

  /** The run stops here for the host to read a split layer's choice; {@link join} says where it goes on. */
  ask(mode: Mode, pause: Omit<Pause, 'asks' | 'joins' | 'canBeWhole'>): void {
    const at = this.dispatches[mode].length;
    const { layer, route } = pause;
    const [experts = 0] = this.weight(expertName(layer, 'gate')).shape;
    const canBeWhole = this.slabs.some(({ layers, slots }) => layers.includes(layer) && slots >= experts);
    this.pauses[mode].push({ ...pause, asks: at, joins: at, canBeWhole });
    if (canBeWhole) this.kept.add(route);
  }

  join(mode: Mode): void {
    const pauses = this.pauses[mode];
    const last = pauses.pop();
    if (last === undefined) throw new InternalError('a run that has not stopped is to go on');
    pauses.push({ ...last, joins: this.dispatches[mode].length });
  }

  /** In runs of a mode for which `where` holds nobody reads a value: the dispatches that make it are left out. */
  leaveOut(mode: Mode, value: ValueName, where: (run: RunShape) => boolean): void {
    this.#unmade.set(`${mode} ${value}`, where);
  }

  /** Whether a run does without the dispatches that make a value; of use once all operations are emitted. */
  leavesOut(mode: Mode, value: ValueName, run: RunShape): boolean {
    return this.#unmade.get(`${mode} ${value}`)?.(run) === true;
  }

  /** Puts a dispatch behind those emitted before. Each sees everything that earlier ones wrote. */
  dispatch(mode: Mode, dispatch: Dispatch): void {
    this.dispatches[mode].push(dispatch);
  }
}

function drawsTokens({ operations, widths, logits }: Graph, { vocabulary }: ModelSpec): boolean {
  const has = (wanted: Operation['kind']) => operations.some(({ kind }) => kind === wanted);
  return has('embed') && has('head') && widths[logits] === vocabulary && vocabulary <= MAX_VOCABULARY;
}
