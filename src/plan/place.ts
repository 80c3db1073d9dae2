/** Places every operation, picks every kernel, sizes every buffer, or refuses; before a weight is read. */

import { PAGE_ROWS } from '../backend/backend.ts';
import { layOut, MAX_ARENA_BYTES } from '../backend/cpu/layout.ts';
import type { CpuRow } from '../backend/cpu/row.ts';
import { cpuRows } from '../backend/cpu/rows.ts';
import { type CacheType, type KernelRequest, type KernelRow, MAX_STEP_ROWS, type Mode } from '../backend/kernel.ts';
import { referenceRows } from '../backend/reference/rows.ts';
import { referenceWeightBytes } from '../backend/reference/store.ts';
import { OutOfMemoryError, UsageError } from '../errors.ts';
import type { Graph, Operation } from '../model/graph.ts';
import type { ModelSpec } from '../model/spec.ts';
import type { Weights } from '../model/weights.ts';
import type { DeviceName, Plan, PlannedBuffer, PlannedOperation, PlannedWeight, PlanOptions } from './plan.ts';
import { select } from './select.ts';

export interface PlanRequest {
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: Weights;
  readonly ignored: Plan['ignored'];
  readonly options: PlanOptions;
  readonly platform: {
    readonly threads: number;
    readonly freeMemoryBytes: number;
    readonly features: ReadonlySet<string>;
  };
}

/** The context that a model gets where nobody asks for one, at the most. */
const DEFAULT_CONTEXT = 8192;
/** A default context is not cut below this for want of memory. */
const LEAST_DEFAULT_CONTEXT = 512;
const DEFAULT_BATCH = 512;
/** The reference keeps every value of a run, so its runs are short. */
const REFERENCE_BATCH = 64;

const tables: Readonly<Record<DeviceName, readonly KernelRow[]>> = { cpu: cpuRows, reference: referenceRows };

/**
 * @throws Refusal `refused` naming each kernel row tried; OutOfMemoryError `out_of_memory` when the model does not fit;
 * UsageError `usage` for a value that no plan can hold.
 */
export function plan(request: PlanRequest): Plan {
  const { spec, graph, weights, options, platform } = request;
  const device = options.device ?? 'cpu';
  const cacheType = options.cache ?? (device === 'cpu' ? defaultCache(request) : 'f32');
  const promptRows =
    device === 'cpu' ? (options.batch ?? DEFAULT_BATCH) : Math.min(options.batch ?? REFERENCE_BATCH, REFERENCE_BATCH);
  const operations = chooseRows({ request, device, cacheType, promptRows });
  const place = (context: number) =>
    device === 'cpu'
      ? placeOnCpu({ request, context, cacheType, promptRows, operations })
      : placeOnReference({ request, context, promptRows });
  const memoryBytes = options.memoryBytes ?? platform.freeMemoryBytes;
  const { context, reason, placed } = chooseContext({ request, memoryBytes, place });
  const pages = pagesFor(context, options);
  return {
    architecture: spec.architecture,
    device,
    threads: threadsFor(request),
    features: [...platform.features].sort(),
    context,
    contextReason: reason,
    maxRows: { prompt: promptRows, step: MAX_STEP_ROWS, wanted: MAX_STEP_ROWS },
    cache: { type: cacheType, pages, pageRows: PAGE_ROWS, bytes: placed.cacheBytes },
    arenas: placed.arenas,
    arenaBytes: arenaLimit(options),
    operations: operations.map(({ planned }) => planned),
    weights: placed.weights,
    buffers: placed.buffers,
    ignored: request.ignored,
    bytes: { weights: placed.weightBytes, cache: placed.cacheBytes, buffers: placed.bufferBytes, total: placed.total },
    memoryBytes,
    bytesPerToken: bytesPerToken(graph, weights),
    reproducible: true,
  };
}

/** f32 while that is a small part of what the model takes anyway (half of its weights), else f16. */
function defaultCache({ spec, weights, options }: PlanRequest): CacheType {
  const context = options.context ?? Math.min(spec.trainedContext, DEFAULT_CONTEXT);
  const rows = pagesFor(context, options) * PAGE_ROWS;
  let weightBytes = 0;
  for (const { bytes } of weights.values()) weightBytes += bytes;
  return f32CacheBytes(spec, rows) <= weightBytes / 2 ? 'f32' : 'f16';
}

function f32CacheBytes(spec: ModelSpec, rows: number): number {
  return spec.layers.reduce(
    (sum, { attention: { kvHeads, headDim, valueDim } }) => sum + rows * kvHeads * (headDim + valueDim) * 4,
    0,
  );
}

interface Chosen {
  readonly planned: PlannedOperation;
  readonly row: KernelRow;
}

function chooseRows(given: {
  readonly request: PlanRequest;
  readonly device: DeviceName;
  readonly cacheType: CacheType;
  readonly promptRows: number;
}): Chosen[] {
  const { request, device, cacheType, promptRows } = given;
  const { graph, weights, platform } = request;
  const rowFor = (operation: Operation, mode: Mode): KernelRow => {
    const asked: KernelRequest = {
      operation,
      mode,
      rows: mode === 'prompt' ? promptRows : MAX_STEP_ROWS,
      weights: weightsOf(operation, weights),
      widths: graph.widths,
      cache: cacheType,
      features: platform.features,
    };
    return select(tables[device], asked);
  };
  return graph.operations.map((operation) => {
    const [prompt, step] = [rowFor(operation, 'prompt'), rowFor(operation, 'step')];
    const { layer, kind, output } = operation;
    return { planned: { layer, kind, output, device, rows: { prompt: prompt.name, step: step.name } }, row: step };
  });
}

/** Every weight that an operation names, with its format and shape. */
export function weightsOf(operation: Operation, weights: Weights): KernelRequest['weights'] {
  const names =
    operation.kind === 'moe'
      ? [...weights.keys()].filter((name) => name.startsWith(`${operation.prefix}.`))
      : 'weight' in operation
        ? [operation.weight]
        : [];
  return Object.fromEntries(
    names.flatMap((name) => {
      const weight = weights.get(name);
      return weight === undefined ? [] : [[name, { format: weight.format, shape: weight.shape }]];
    }),
  );
}

interface Placed {
  readonly arenas: readonly number[];
  readonly weights: readonly PlannedWeight[];
  readonly buffers: readonly PlannedBuffer[];
  readonly weightBytes: number;
  readonly cacheBytes: number;
  readonly bufferBytes: number;
  readonly total: number;
}

function placeOnCpu(given: {
  readonly request: PlanRequest;
  readonly context: number;
  readonly cacheType: CacheType;
  readonly promptRows: number;
  readonly operations: readonly Chosen[];
}): Placed {
  const { request, context, cacheType, promptRows, operations } = given;
  const { spec, graph, weights, options } = request;
  const program = layOut({
    spec,
    graph,
    weights,
    context,
    cacheType,
    promptRows,
    rows: operations.map(({ row }) => row as CpuRow),
    threads: threadsFor(request),
    pages: pagesFor(context, options),
    wantedRows: MAX_STEP_ROWS,
    arenaBytes: arenaLimit(options),
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
  };
}

function placeOnReference(given: {
  readonly request: PlanRequest;
  readonly context: number;
  readonly promptRows: number;
}): Placed {
  const { request, context, promptRows } = given;
  const { spec, graph, weights, options } = request;
  const planned = [...weights.values()].map(
    (weight): PlannedWeight => ({
      name: weight.name,
      format: weight.format,
      shape: weight.shape,
      bytes: referenceWeightBytes(weight),
      device: 'reference',
      layout: weight.format === 'F32' ? undefined : 'decoded to f32',
    }),
  );
  const rows = Math.max(promptRows, MAX_STEP_ROWS);
  const weightBytes = planned.reduce((sum, { bytes }) => sum + bytes, 0);
  const cacheBytes = f32CacheBytes(spec, pagesFor(context, options) * PAGE_ROWS);
  const bufferBytes = Object.values(graph.widths).reduce((sum, width) => sum + width * rows * 4, 0);
  const buffers: PlannedBuffer[] = [
    { name: 'every value of a run', bytes: bufferBytes, device: 'reference', lifetime: 'step' },
  ];
  return {
    arenas: [],
    weights: planned,
    buffers,
    weightBytes,
    cacheBytes,
    bufferBytes,
    total: weightBytes + cacheBytes + bufferBytes,
  };
}

function chooseContext(given: {
  readonly request: PlanRequest;
  readonly memoryBytes: number;
  readonly place: (context: number) => Placed;
}): { readonly context: number; readonly reason: string; readonly placed: Placed } {
  const { request, memoryBytes, place } = given;
  const { spec, options } = request;
  const asked = options.context;
  if (asked !== undefined) {
    const placed = place(asked);
    if (placed.total > memoryBytes) throw doesNotFit(placed, asked, memoryBytes);
    const beyond = asked > spec.trainedContext ? `, beyond the ${spec.trainedContext} it was trained with` : '';
    return { context: asked, reason: `as asked for${beyond}`, placed };
  }
  const wanted = Math.min(spec.trainedContext, DEFAULT_CONTEXT);
  const reason =
    wanted === spec.trainedContext
      ? 'the length the model was trained with'
      : `the default; trained with ${spec.trainedContext}`;
  const placed = place(wanted);
  if (placed.total <= memoryBytes) return { context: wanted, reason, placed };
  // Only the cache (and rope tables) grow with the context: cut it in halves until all fits.
  for (
    let context = PAGE_ROWS * Math.floor(wanted / 2 / PAGE_ROWS);
    context >= LEAST_DEFAULT_CONTEXT;
    context = PAGE_ROWS * Math.floor(context / 2 / PAGE_ROWS)
  ) {
    const smaller = place(context);
    if (smaller.total <= memoryBytes) return { context, reason: `what fits in ${memoryBytes} bytes`, placed: smaller };
  }
  throw doesNotFit(
    place(Math.min(wanted, LEAST_DEFAULT_CONTEXT)),
    Math.min(wanted, LEAST_DEFAULT_CONTEXT),
    memoryBytes,
  );
}

function doesNotFit(placed: Placed, context: number, memoryBytes: number): OutOfMemoryError {
  return new OutOfMemoryError(
    `the model does not fit: ${placed.weightBytes} bytes of weights, ${placed.cacheBytes} of cache for ${context} tokens and ` +
      `${placed.bufferBytes} of buffers make ${placed.total}, and ${memoryBytes} may be used; choose a smaller model or a shorter context`,
    { data: { needed: placed.total, available: memoryBytes, context } },
  );
}

function pagesFor(context: number, options: PlanOptions): number {
  return Math.ceil(context / PAGE_ROWS) * (options.sessions ?? 1);
}

function threadsFor({ options, platform }: PlanRequest): number {
  return options.device === 'reference' ? 1 : (options.threads ?? platform.threads);
}

function arenaLimit(options: PlanOptions): number {
  const limit = options.arenaBytes ?? MAX_ARENA_BYTES;
  if (limit > MAX_ARENA_BYTES) {
    throw new UsageError(`arenaBytes: found ${limit}, and one WebAssembly memory holds at most ${MAX_ARENA_BYTES}`);
  }
  return limit;
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
    } else if ('weight' in operation) {
      bytes += size(operation.weight);
    }
  }
  return Math.round(bytes);
}
