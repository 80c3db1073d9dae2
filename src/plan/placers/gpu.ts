/** The GPU: each weight in a buffer of its own, activations in buffers that share memory. */

import { buffersBeside } from '../../backend/gpu/beside.ts';
import { bufferBytes as sizeOf } from '../../backend/gpu/device-buffers.ts';
import { fuse } from '../../backend/gpu/fuse.ts';
import { MATRIX_FEATURE } from '../../backend/gpu/kernels/matrix.ts';
import { type GpuProgram, layOutGpu } from '../../backend/gpu/layout.ts';
import type { GpuRow } from '../../backend/gpu/row.ts';
import { gpuRows } from '../../backend/gpu/rows.ts';
import { samplingBytes } from '../../backend/gpu/sampling-buffer.ts';
import { slabWeights } from '../../backend/gpu/slab.ts';
import { MAX_STEP_ROWS } from '../../backend/kernel.ts';
import { OutOfMemoryError, Refusal } from '../../errors.ts';
import { DEFAULT_BATCH, type Placed, type PlaceRequest, type Placer, type PlanRequest, pagesFor } from '../placer.ts';
import type { PlannedBuffer, PlannedWeight } from '../plan.ts';
import { showBytes } from '../show.ts';

/** Rows of a prompt in one run, by default, where products run on subgroup matrices. */
const MATRIX_BATCH = 2048;

export const gpuPlacer: Placer = {
  rows: gpuRows,
  rewrite: fuse,
  features,
  // The engine's own thread; there is no pool.
  threads: () => 1,
  defaultCache: () => 'f16',
  // Experts see enough rows of a long run to fill the tiles of subgroup matrices.
  promptRows: (request) =>
    request.options.batch ?? (features(request).has(MATRIX_FEATURE) ? MATRIX_BATCH : DEFAULT_BATCH),
  // WebGPU does not tell how much memory a device has.
  memoryBytes: ({ options }) => options.gpuMemoryBytes,
  place,
};

function features({ platform }: PlanRequest): ReadonlySet<string> {
  return new Set(platform.adapter?.features);
}

/** @throws Refusal `refused` for a kernel that binds more buffers than the GPU takes */
function checkBindings({ dispatches, mtp }: GpuProgram, { platform }: PlanRequest): void {
  const most = platform.adapter?.maxBindings ?? Number.POSITIVE_INFINITY;
  for (const { label, bindings } of [dispatches, mtp].flatMap((lists) => [
    ...(lists?.prompt ?? []),
    ...(lists?.step ?? []),
  ])) {
    if (bindings.length <= most) continue;
    throw new Refusal(
      `${label} binds ${bindings.length} buffers, and this GPU takes ${most} a kernel; use a GPU that takes more, or --device cpu`,
      { data: { kernel: label, bindings: bindings.length, limit: most } },
    );
  }
}

/** Bytes that the GPU binds at once, at the most. */
export function bindsAtOnce({ platform }: PlanRequest): number {
  if (platform.adapter === undefined) return Number.POSITIVE_INFINITY;
  return Math.min(platform.adapter.maxBindingBytes, platform.adapter.maxBufferBytes);
}

function place({ request, context, cacheType, promptRows, rows, experts }: PlaceRequest): Placed {
  const { spec, graph, weights, options } = request;
  const program = layOutGpu({
    spec,
    graph,
    weights,
    rows: rows as { prompt: readonly GpuRow[]; step: readonly GpuRow[] },
    context,
    pages: pagesFor(context, options),
    promptRows,
    wantedRows: MAX_STEP_ROWS,
    cacheType,
    features: features(request),
    slabs: experts?.slabs,
    hostPairs: experts?.hostPairs,
    foresees: experts?.prefetch === 'gate',
  });
  checkBindings(program, request);
  // What lies elsewhere has no bytes here.
  const stored = [...weights.values()].filter(({ name }) => program.weightBytes.has(name));
  const planned = stored.map(
    (weight): PlannedWeight => ({
      name: weight.name,
      format: weight.format,
      shape: weight.shape,
      bytes: sizeOf(program.weightBytes.get(weight.name) as number),
      device: 'gpu',
      layout: weight.shape.length < 2 || weight.format === 'F32' ? undefined : 'planes',
    }),
  );
  const { sampling } = program;
  const ropeBytes = program.ropes.reduce((sum, { dimensions }) => sum + sizeOf(context * dimensions * 4), 0);
  const tableBytes = [...program.slotTables.values()].reduce((sum, count) => sum + sizeOf(count * 4), 0);
  const slabs = slabWeights(experts?.slabs ?? [], weights).map(
    ({ name }): PlannedBuffer => ({
      name,
      bytes: sizeOf(program.weightBytes.get(name) as number),
      device: 'gpu',
      lifetime: 'model',
    }),
  );
  const bindable: PlannedBuffer[] = [
    ...slabs,
    ...program.slots.map(
      (bytes, index): PlannedBuffer => ({
        name: `activations ${index}`,
        bytes: sizeOf(bytes),
        device: 'gpu',
        lifetime: 'step',
      }),
    ),
    { name: 'step', bytes: sizeOf(program.step.words * 4), device: 'gpu', lifetime: 'step' },
    ...(tableBytes === 0
      ? []
      : ([{ name: 'where experts are', bytes: tableBytes, device: 'gpu', lifetime: 'model' }] as const)),
    ...(sampling === undefined
      ? []
      : ([{ name: 'sampling', bytes: samplingBytes(sampling), device: 'gpu', lifetime: 'model' }] as const)),
    { name: 'rope tables', bytes: ropeBytes, device: 'gpu', lifetime: 'model' },
  ];
  const largest = bindsAtOnce(request);
  const cache = program.cache.flatMap((layerBytes, layer) =>
    layerBytes === undefined
      ? []
      : [
          { name: `keys of layer ${layer}`, bytes: sizeOf(layerBytes.keys) },
          { name: `values of layer ${layer}`, bytes: sizeOf(layerBytes.values) },
        ],
  );
  for (const { name, bytes } of [...planned, ...bindable, ...cache]) {
    if (bytes <= largest) continue;
    throw new OutOfMemoryError(
      `${name} takes ${showBytes(bytes)}, and this GPU binds at most ${showBytes(largest)} at once; ask for a shorter context or use --device cpu`,
      { data: { name, bytes, limit: largest } },
    );
  }
  const beside = buffersBeside({
    program,
    graph,
    spec,
    weights,
    stored,
    slabs: experts?.slabs ?? [],
    rows: Math.max(promptRows, MAX_STEP_ROWS),
    wanted: MAX_STEP_ROWS,
  }).map((buffer): PlannedBuffer => ({ ...buffer, device: 'gpu' }));
  const buffers = [...bindable, ...beside];
  const weightBytes = planned.reduce((sum, { bytes }) => sum + bytes, 0);
  const cacheBytes = cache.reduce((sum, { bytes }) => sum + bytes, 0);
  const bufferBytes = buffers.reduce((sum, { bytes }) => sum + bytes, 0);
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
