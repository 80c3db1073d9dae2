/** The program of a graph for the GPU: dispatches by mode, and buffers that share memory where their lives do not meet. */

import { cacheWidths } from '../../model/cache-widths.ts';
import { cachedLayersOf } from '../../model/cut.ts';
import type { Graph, ValueName } from '../../model/graph.ts';
import { allLayers, type ModelSpec, type RopeSpec } from '../../model/spec.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { PAGE_ROWS } from '../backend.ts';
import type { CacheType, Mode } from '../kernel.ts';
import { type Binding, Builder, type Choice, type Dispatch, HOST_PLACES, type Pause } from './builder.ts';
import { gpuFormat } from './formats/index.ts';
import { planeWords } from './formats.ts';
import { emitSample } from './kernels/sample.ts';
import type { GpuRow } from './row.ts';
import type { SamplingLayout } from './sampling-buffer.ts';
import { EXPERT_PARTS, expertName, type Slab, slabWeights } from './slab.ts';
import type { StepLayout } from './step-buffer.ts';

export interface GpuLayoutOptions {
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: Weights;
  /** The chosen row of each of the graph's operations, by mode. */
  readonly rows: Readonly<Record<Mode, readonly GpuRow[]>>;
  readonly context: number;
  /** Pages of the cache, a layer. */
  readonly pages: number;
  readonly promptRows: number;
  readonly wantedRows: number;
  readonly cacheType: CacheType;
  readonly features: ReadonlySet<string>;
  /** Where the experts of split layers lie. */
  readonly slabs?: readonly Slab[];
  /** Most results of experts elsewhere that a split layer brings. */
  readonly hostPairs?: number;
  /** Whether the choices of split layers are foreseen by their routers. */
  readonly foresees?: boolean;
}

export interface GpuProgram {
  readonly dispatches: Readonly<Record<Mode, readonly Dispatch[]>>;
  /** Of what predicts further ahead, where the graph has that: run by themselves. */
  readonly mtp?: Readonly<Record<Mode, readonly Dispatch[]>>;
  /** Where a run stops for experts elsewhere, in order. */
  readonly pauses: Readonly<Record<Mode, readonly Pause[]>>;
  /** What is foreseen in a step of the choices of layers, each by the layer's router on the one before. */
  readonly foreseen: readonly Choice[];
  /** Bytes of each buffer of activations; values and buffers name one by its index. */
  readonly slots: readonly number[];
  readonly slotOf: ReadonlyMap<string, number>;
  readonly step: StepLayout;
  /** Where tokens are drawn. */
  readonly sampling?: SamplingLayout;
  /** Experts of each split layer. */
  readonly slotTables: ReadonlyMap<number, number>;
  /** Of weights and of slabs' stacks. */
  readonly weightBytes: ReadonlyMap<string, number>;
  /** Each kind of rotation that a dispatch binds. */
  readonly ropes: readonly RopeSpec[];
  /** Bytes of keys and of values, by layer; undefined for those of other parts. */
  readonly cache: readonly ({ readonly keys: number; readonly values: number } | undefined)[];
}

export function layOutGpu(options: GpuLayoutOptions): GpuProgram {
  const { graph, spec, weights, cacheType, context, features } = options;
  const builder = new Builder({
    graph,
    spec,
    weights,
    promptRows: options.promptRows,
    wanted: options.wantedRows,
    context,
    cacheType,
    features,
    slabs: options.slabs,
    hostPairs: options.hostPairs,
    foresees: options.foresees,
  });
  // Behind everything else comes what predicts further ahead.
  const ends = { prompt: 0, step: 0 };
  for (const mode of ['prompt', 'step'] as const) {
    const emit = (mtp: boolean) =>
      graph.operations.forEach((operation, index) => {
        if ((operation.mtp === true) === mtp) (options.rows[mode][index] as GpuRow).emit(operation, builder, mode);
      });
    emit(false);
    if (builder.draws) emitSample(builder, mode, graph.logits);
    ends[mode] = builder.dispatches[mode].length;
    emit(true);
  }
  const { slots, slotOf } = shareSlots(builder, ends);
  const slabs = builder.slabs;
  const elsewhere = new Set(
    slabs.flatMap(({ layers }) => layers.flatMap((layer) => EXPERT_PARTS.map((part) => expertName(layer, part)))),
  );
  const stored = [...[...weights.values()].filter(({ name }) => !elsewhere.has(name)), ...slabWeights(slabs, weights)];
  const element = cacheType === 'f16' ? 2 : 4;
  const rows = options.pages * PAGE_ROWS;
  const layers = cachedLayersOf(graph);
  return {
    dispatches: mapModes((mode) => builder.dispatches[mode].slice(0, ends[mode])),
    ...(graph.mtp === undefined ? {} : { mtp: mapModes((mode) => builder.dispatches[mode].slice(ends[mode])) }),
    pauses: builder.pauses,
    foreseen: builder.foreseen,
    slotTables: new Map(
      slabs.flatMap(({ layers }) =>
        layers.map((layer) => [layer, weights.get(expertName(layer, 'gate'))?.shape[0] as number] as const),
      ),
    ),
    slots,
    slotOf,
    step: builder.step,
    sampling: builder.draws ? builder.sampling : undefined,
    ropes: ropesOf([...builder.dispatches.prompt, ...builder.dispatches.step]),
    weightBytes: new Map(stored.map((weight) => [weight.name, deviceBytes(weight)])),
    cache: allLayers(spec).map(({ attention }, layer) => {
      if (!layers.has(layer)) return undefined;
      const { keys, values } = cacheWidths(attention);
      return { keys: rows * keys * element, values: rows * values * element };
    }),
  };
}

function mapModes<Made>(make: (mode: Mode) => Made): Record<Mode, Made> {
  return { prompt: make('prompt'), step: make('step') };
}

function ropesOf(dispatches: readonly Dispatch[]): RopeSpec[] {
  const ropes = new Map<string, RopeSpec>();
  for (const { bindings } of dispatches) {
    for (const binding of bindings) if (binding.kind === 'rope') ropes.set(JSON.stringify(binding.rope), binding.rope);
  }
  return [...ropes.values()];
}

/** Bytes of a weight on the device: matrices in planes, vectors as f32. */
export function deviceBytes({ format, shape }: Weight): number {
  if (shape.length < 2) return (shape[0] as number) * 4;
  const columns = shape.at(-1) as number;
  const rows = shape.slice(0, -1).reduce((product, n) => product * n, 1);
  const known = gpuFormat(format);
  return known === undefined ? 0 : rows * planeWords(known, columns).rowWords * 4;
}

interface Life {
  readonly mode: Mode;
  readonly first: number;
  readonly last: number;
}

function namesOf(bindings: readonly Binding[]): ValueName[] {
  return bindings.flatMap((binding) => (binding.kind === 'value' || binding.kind === 'buffer' ? [binding.name] : []));
}

/**
 * Names whose dispatches do not overlap, in either mode, may share a buffer; the largest choose first. What the host writes
 * only when it changes has one of its own.
 * @param ends where the dispatches begin that are run by themselves
 */
function shareSlots(
  builder: Builder,
  ends: Readonly<Record<Mode, number>>,
): { slots: number[]; slotOf: Map<string, number> } {
  const { operations, logits, mtp } = builder.graph;
  // The host writes it before the first dispatch of its run.
  const incoming = new Map(
    operations.flatMap((operation) => (operation.kind === 'incoming' ? [[operation.output, operation.mtp]] : [])),
  );
  // What the host reads when a run has ended, or another one after it.
  const outcomes = new Set(mtp === undefined ? [logits] : [logits, mtp.given, mtp.logits, mtp.hidden]);
  const lives = new Map<string, Life[]>();
  for (const mode of ['prompt', 'step'] as const) {
    const spans = new Map<string, { first: number; last: number }>();
    builder.dispatches[mode].forEach(({ bindings }, index) => {
      for (const name of namesOf(bindings)) {
        const span = spans.get(name);
        if (span === undefined) spans.set(name, { first: index, last: index });
        else span.last = index;
      }
    });
    // What comes before a run goes on may be run several times, and the host reads and writes meanwhile.
    for (const { asks, joins, input, route } of builder.pauses[mode]) {
      for (const [name, span] of spans) {
        if (name !== input && name !== route && (span.first > joins || span.last < asks)) continue;
        span.first = Math.min(span.first, asks);
        span.last = Math.max(span.last, joins);
      }
    }
    for (const [name, { first, last }] of spans) {
      const kept = name === HOST_PLACES;
      const life = {
        mode,
        first: kept ? 0 : incoming.has(name) ? (incoming.get(name) === true ? ends[mode] : 0) : first,
        last: kept || outcomes.has(name) || builder.kept.has(name) ? Number.POSITIVE_INFINITY : last,
      };
      lives.set(name, [...(lives.get(name) ?? []), life]);
    }
  }
  const bytesOf = (name: string) => builder.bytes.get(name) ?? 0;
  const order = [...lives.keys()].sort((a, b) => bytesOf(b) - bytesOf(a));
  const slots: { bytes: number; lives: Life[] }[] = [];
  const slotOf = new Map<string, number>();
  for (const name of order) {
    const own = lives.get(name) as Life[];
    let index = slots.findIndex(({ lives: taken }) => !taken.some((other) => own.some((life) => meets(life, other))));
    if (index < 0) {
      index = slots.length;
      slots.push({ bytes: bytesOf(name), lives: [] });
    }
    (slots[index] as { lives: Life[] }).lives.push(...own);
    slotOf.set(name, index);
  }
  return { slots: slots.map(({ bytes }) => Math.max(16, bytes)), slotOf };
}

function meets(a: Life, b: Life): boolean {
  return a.mode === b.mode && a.first <= b.last && b.first <= a.last;
}
