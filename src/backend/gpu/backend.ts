/** The GPU as a device: WGSL kernels through WebGPU. What a step needs stays on the device; only logits come back. */

import { DeviceLostError, DisposedError, InternalError, NonFiniteError } from '../../errors.ts';
import { ropeAngles, ropeTable } from '../../model/rope.ts';
import { platform } from '../../platform/index.ts';
import type { Platform } from '../../platform/platform.ts';
import type { Backend, DeviceBandwidth, Executable, PrepareRequest, RunProfile, Step } from '../backend.ts';
import { checkStep } from '../check-step.ts';
import { measureGpuBandwidth } from './bandwidth.ts';
import type { Binding, RunShape } from './builder.ts';
import { Gpu } from './device.ts';
import { fuse } from './fuse.ts';
import { type GpuProgram, layOutGpu } from './layout.ts';
import { planeMaker } from './plane-pool.ts';
import { type DispatchTime, profileRun } from './profile.ts';
import { Recorder } from './recorder.ts';
import type { GpuRow } from './row.ts';
import { gpuRows } from './rows.ts';
import { writeStep } from './step-buffer.ts';
import { readVector, storeOnGpu } from './store.ts';

const MAP_READ = 0x1;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const STORAGE = 0x80;

export function gpuBackend(): Backend {
  return { device: 'gpu', rows: gpuRows, prepare: async (request) => prepare(request, await platform()) };
}

async function prepare(request: PrepareRequest, place: Platform): Promise<Executable> {
  const gpu = await Gpu.open(place);
  try {
    const program = programFor(request);
    const buffers = await DeviceBuffers.make(gpu, request, program);
    const recorder = await Recorder.make(gpu, program.dispatches, (binding) => buffers.of(binding));
    const planes = planeMaker(place, request);
    await storeOnGpu(request, gpu, { buffers: buffers.weights, planes }).finally(() => planes.close());
    return new GpuExecutable(request, { gpu, program, buffers, recorder });
  } catch (error) {
    gpu.close();
    throw error;
  }
}

/** The program that the plan was made from. */
function programFor({ plan, spec, graph: unfused, weights }: PrepareRequest): GpuProgram {
  const graph = fuse(unfused);
  const byName = new Map(gpuRows.map((row) => [row.name, row]));
  const rowsOf = (mode: 'prompt' | 'step') => plan.operations.map(({ rows }) => byName.get(rows[mode]) as GpuRow);
  return layOutGpu({
    spec,
    graph,
    weights,
    rows: { prompt: rowsOf('prompt'), step: rowsOf('step') },
    context: plan.context,
    pages: plan.cache.pages,
    promptRows: plan.maxRows.prompt,
    wantedRows: plan.maxRows.wanted,
    cacheType: plan.cache.type,
    features: new Set(plan.features),
  });
}

/** Every buffer of a program on the device. */
class DeviceBuffers {
  readonly weights = new Map<string, GPUBuffer>();
  readonly bytes: number;
  readonly step: GPUBuffer;
  readonly #slots: readonly GPUBuffer[];
  readonly #slotOf: ReadonlyMap<string, number>;
  readonly #cache: readonly { readonly keys: GPUBuffer; readonly values: GPUBuffer }[];
  readonly #ropes: ReadonlyMap<string, GPUBuffer>;

  private constructor(made: {
    readonly weights: ReadonlyMap<string, GPUBuffer>;
    readonly step: GPUBuffer;
    readonly slots: readonly GPUBuffer[];
    readonly slotOf: ReadonlyMap<string, number>;
    readonly cache: readonly { readonly keys: GPUBuffer; readonly values: GPUBuffer }[];
    readonly ropes: ReadonlyMap<string, GPUBuffer>;
  }) {
    for (const [name, buffer] of made.weights) this.weights.set(name, buffer);
    this.step = made.step;
    this.#slots = made.slots;
    this.#slotOf = made.slotOf;
    this.#cache = made.cache;
    this.#ropes = made.ropes;
    const all = [
      ...made.weights.values(),
      made.step,
      ...made.slots,
      ...made.cache.flatMap(({ keys, values }) => [keys, values]),
      ...made.ropes.values(),
    ];
    this.bytes = all.reduce((sum, { size }) => sum + size, 0);
  }

  static async make(gpu: Gpu, request: PrepareRequest, program: GpuProgram): Promise<DeviceBuffers> {
    const { device } = gpu;
    const buffer = (label: string, size: number) =>
      device.createBuffer({ label, size: Math.ceil(size / 16) * 16, usage: STORAGE | COPY_DST | COPY_SRC });
    const ropes = await ropeBuffers(request, program, buffer, device);
    return gpu.guarded(
      () =>
        new DeviceBuffers({
          weights: new Map([...program.weightBytes].map(([name, bytes]) => [name, buffer(name, bytes)])),
          step: buffer('step', program.step.words * 4),
          slots: program.slots.map((bytes, index) => buffer(`activations ${index}`, bytes)),
          slotOf: program.slotOf,
          cache: program.cache.map(({ keys, values }, layer) => ({
            keys: buffer(`keys of layer ${layer}`, keys),
            values: buffer(`values of layer ${layer}`, values),
          })),
          ropes,
        }),
    );
  }

  named(name: string): GPUBuffer | undefined {
    const slot = this.#slotOf.get(name);
    return slot === undefined ? undefined : this.#slots[slot];
  }

  of(binding: Binding): GPUBuffer {
    const found = this.#find(binding);
    if (found === undefined) throw new InternalError(`no buffer was made for the binding ${JSON.stringify(binding)}`);
    return found;
  }

  #find(binding: Binding): GPUBuffer | undefined {
    switch (binding.kind) {
      case 'value':
      case 'buffer':
        return this.named(binding.name);
      case 'weight':
        return this.weights.get(binding.name);
      case 'cache':
        return this.#cache[binding.layer]?.[binding.part];
      case 'rope':
        return this.#ropes.get(JSON.stringify(binding.rope));
      case 'step':
        return this.step;
    }
  }
}

/** Cosines and sines of every position of the context, for each kind of rotation that a dispatch binds. */
async function ropeBuffers(
  { plan, weights, sources }: PrepareRequest,
  program: GpuProgram,
  buffer: (label: string, size: number) => GPUBuffer,
  device: GPUDevice,
): Promise<Map<string, GPUBuffer>> {
  const factors = weights.get('ropeFactors');
  const made = new Map<string, GPUBuffer>();
  for (const rope of program.ropes) {
    const own =
      rope.scaling.kind === 'factors' && factors !== undefined
        ? await readVector(factors, (index) => sources[index] as PrepareRequest['sources'][number])
        : undefined;
    const table = ropeTable(rope, own);
    const pairs = rope.dimensions / 2;
    const angles = new Float32Array(plan.context * pairs * 2);
    for (let position = 0; position < plan.context; position++) {
      ropeAngles(table, position, { cos: angles, sin: angles.subarray(pairs), offset: position * pairs * 2 });
    }
    const target = buffer('rope', angles.byteLength);
    device.queue.writeBuffer(target, 0, angles);
    made.set(JSON.stringify(rope), target);
  }
  return made;
}

export class GpuExecutable implements Executable {
  readonly bytes: number;
  readonly #request: PrepareRequest;
  readonly #gpu: Gpu;
  readonly #program: GpuProgram;
  readonly #buffers: DeviceBuffers;
  readonly #recorder: Recorder;
  readonly #words: Uint32Array<ArrayBuffer>;
  #readback: GPUBuffer | undefined;
  #rows = 0;
  /** When the last run was submitted. */
  #submittedMs = 0;
  #disposed = false;

  constructor(
    request: PrepareRequest,
    made: {
      readonly gpu: Gpu;
      readonly program: GpuProgram;
      readonly buffers: DeviceBuffers;
      readonly recorder: Recorder;
    },
  ) {
    this.#request = request;
    this.#gpu = made.gpu;
    this.#program = made.program;
    this.#buffers = made.buffers;
    this.#recorder = made.recorder;
    this.#words = new Uint32Array(made.program.step.words);
    this.bytes = made.buffers.bytes;
  }

  /** Checks a step and puts it where the next submission reads it. */
  #begin(step: Step): { readonly shape: RunShape } {
    if (this.#disposed) throw new DisposedError('the GPU backend');
    const { plan, spec } = this.#request;
    this.#gpu.check();
    checkStep(step, plan, spec.vocabulary);
    const used = writeStep(step, this.#program.step, this.#words);
    this.#gpu.device.queue.writeBuffer(this.#buffers.step, 0, this.#words, 0, used);
    this.#rows = step.tokens.length;
    const visible = step.positions.reduce((most, position) => Math.max(most, position + 1), 0);
    return { shape: { rows: step.tokens.length, wanted: step.wanted.length, visible } };
  }

  async run(step: Step): Promise<Float32Array> {
    const { spec, graph } = this.#request;
    const { shape } = this.#begin(step);
    const encoder = this.#gpu.device.createCommandEncoder();
    this.#recorder.record(encoder, step.mode, shape);
    const logits = await this.#read(encoder, graph.logits, step.wanted.length * spec.vocabulary);
    this.#requireFinite(logits, step);
    return logits;
  }

  /** How long each dispatch of a step takes by the device's clock; the step is run. Absent without timestamps. */
  async time(step: Step): Promise<DispatchTime[] | undefined> {
    const { shape } = this.#begin(step);
    return this.#recorder.time(step.mode, shape);
  }

  /** As {@link Recorder.timeKinds}, of a step, which is run. */
  async timeKinds(step: Step, kindOf: (label: string) => string | undefined, repeats = 1) {
    const { shape } = this.#begin(step);
    return this.#recorder.timeKinds(step.mode, shape, { kindOf, repeats });
  }

  profile(step: Step, repetitions: number): Promise<RunProfile> {
    return profileRun({
      repetitions,
      run: async () => {
        const startMs = performance.now();
        await this.run(step);
        const { dispatches } = this.#recorder;
        return { dispatches, encodeMs: this.#submittedMs - startMs, runMs: performance.now() - startMs };
      },
      time: () => this.time(step),
    });
  }

  bandwidth(): Promise<DeviceBandwidth | undefined> {
    return measureGpuBandwidth(this.#gpu);
  }

  /**
   * Runs a step `count` times without reading anything back in between, as steps follow each other where the host encodes
   * ahead. `encodeMs` is the host's time to encode and submit all of them, `totalMs` until the device has done them.
   */
  async timeRuns(
    step: Step,
    count: number,
  ): Promise<{ readonly encodeMs: number; readonly totalMs: number; readonly dispatches: number }> {
    const { queue } = this.#gpu.device;
    await queue.onSubmittedWorkDone();
    const start = performance.now();
    for (let i = 0; i < count; i++) {
      const { shape } = this.#begin(step);
      const encoder = this.#gpu.device.createCommandEncoder();
      this.#recorder.record(encoder, step.mode, shape);
      queue.submit([encoder.finish()]);
    }
    const encodeMs = performance.now() - start;
    await queue.onSubmittedWorkDone();
    this.#gpu.check();
    return { encodeMs, totalMs: performance.now() - start, dispatches: this.#recorder.dispatches };
  }

  /** A named value of the last run, where no later one has taken its place. */
  async value(name: string): Promise<Float32Array> {
    const width = this.#request.graph.widths[name] as number;
    return this.#read(this.#gpu.device.createCommandEncoder(), name, this.#rows * width);
  }

  /** Ends and submits what `encoder` holds, and reads the first `count` f32 of a buffer afterwards. */
  async #read(encoder: GPUCommandEncoder, name: string, count: number): Promise<Float32Array> {
    const { device } = this.#gpu;
    const source = this.#buffers.named(name);
    const bytes = count * 4;
    if (bytes > 0 && source === undefined) throw new InternalError(`no value is called ${name}`);
    if (this.#readback === undefined || this.#readback.size < bytes) {
      this.#readback?.destroy();
      this.#readback = device.createBuffer({
        label: 'readback',
        size: Math.max(bytes, 4096),
        usage: MAP_READ | COPY_DST,
      });
    }
    if (bytes > 0) encoder.copyBufferToBuffer(source as GPUBuffer, 0, this.#readback, 0, bytes);
    device.queue.submit([encoder.finish()]);
    this.#submittedMs = performance.now();
    if (bytes === 0) {
      await device.queue.onSubmittedWorkDone();
      this.#gpu.check();
      return new Float32Array(0);
    }
    try {
      await this.#readback.mapAsync(MAP_READ, 0, bytes);
    } catch (cause) {
      this.#gpu.check();
      throw new DeviceLostError('the GPU gave no result; load the model again, or use --device cpu', { cause });
    }
    const result = new Float32Array(this.#readback.getMappedRange(0, bytes).slice(0));
    this.#readback.unmap();
    this.#gpu.check();
    return result;
  }

  #requireFinite(logits: Float32Array, step: Step): void {
    let nothing = 0;
    // x - x is 0 for finite values and NaN for all others.
    for (let i = 0; i < logits.length; i++) nothing += (logits[i] as number) - (logits[i] as number);
    if (nothing === 0) return;
    const position = step.positions[0];
    throw new NonFiniteError(
      `a logit is not finite, in the ${step.mode} of ${step.tokens.length} rows from position ${position} on;` +
        ' the weights are damaged or the model does not fit its format (--device cpu names the layer)',
      { data: { mode: step.mode, position } },
    );
  }

  async dispose(): Promise<void> {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#gpu.close();
  }
}
