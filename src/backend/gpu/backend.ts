/** The GPU as a device: WGSL kernels through WebGPU. What a step needs stays on the device; tokens or logits come back. */

import { DisposedError, InternalError, NonFiniteError, OutOfMemoryError } from '../../errors.ts';
import type { ExpertWatcher } from '../../experts/watch.ts';
import { type Operation, ownOperations } from '../../model/graph.ts';
import { platform } from '../../platform/index.ts';
import type { Platform } from '../../platform/platform.ts';
import type {
  Backend,
  DeviceBandwidth,
  DeviceMemoryUse,
  Executable,
  MtpRunner,
  PrepareRequest,
  RunProfile,
  Step,
} from '../backend.ts';
import { checkStep, incomingRows } from '../check-step.ts';
import { BESIDE_REGION_BYTES, measureGpuBandwidth } from './bandwidth.ts';
import type { Binding, RunShape } from './builder.ts';
import { Gpu } from './device.ts';
import { DeviceBuffers, type SamplingBuffers } from './device-buffers.ts';
import { GpuDrawer } from './drawer.ts';
import { allFinite, endsOfLayers, notFinite } from './finite.ts';
import { fuse } from './fuse.ts';
import { type GpuProgram, layOutGpu } from './layout.ts';
import { gpuMtpRunner, type ReadPart } from './mtp-run.ts';
import { planeMaker } from './plane-pool.ts';
import { type DispatchTime, profileRun } from './profile.ts';
import { readBuffer, resultBytes } from './readback.ts';
import { Recorder } from './recorder.ts';
import type { GpuRow } from './row.ts';
import { gpuRows } from './rows.ts';
import { makeSplit } from './split.ts';
import type { SplitRun } from './split-run.ts';
import { timeSplit } from './split-time.ts';
import { writeStep } from './step-buffer.ts';
import { storeOnGpu } from './store.ts';

const MAP_READ = 0x1;
const COPY_DST = 0x8;

/** @param options.gpu a device that is open already and stays its owner's to close; else `prepare` opens one */
export function gpuBackend(options: { readonly gpu?: Gpu } = {}): Backend {
  return { device: 'gpu', rows: gpuRows, prepare: async (request) => prepare(request, await platform(), options.gpu) };
}

async function prepare(request: PrepareRequest, place: Platform, lent: Gpu | undefined): Promise<Executable> {
  const gpu = lent ?? (await openFor(request, place));
  let buffers: DeviceBuffers | undefined;
  const release = () => {
    buffers?.destroy();
    if (lent === undefined) gpu.close();
  };
  try {
    const program = programFor(request);
    buffers = await DeviceBuffers.make(gpu, request, program);
    const { weights } = buffers;
    const bufferOf = (binding: Binding) => (buffers as DeviceBuffers).of(binding);
    const recorder = await Recorder.make(gpu, program.dispatches, bufferOf);
    const planes = planeMaker(place, request);
    await storeOnGpu(request, gpu, { buffers: weights, planes }).finally(() => planes.close());
    const ahead = program.mtp && (await Recorder.make(gpu, program.mtp, bufferOf));
    const split = await makeSplit(request, { gpu, program, recorder, bufferOf, platform: place });
    return new GpuExecutable(request, { gpu, program, buffers, recorder, ahead, split, release });
  } catch (error) {
    release();
    // Mapped memory that cannot be had is no event of the device.
    if (!(error instanceof RangeError)) throw error;
    throw new OutOfMemoryError(`memory for loading onto the GPU cannot be had: ${error.message}`, { cause: error });
  }
}

function openFor({ plan }: PrepareRequest, place: Platform): Promise<Gpu> {
  return Gpu.open(place, { number: plan.adapterNumber, unchecked: plan.unchecked });
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
    slabs: plan.experts?.slabs,
    hostPairs: plan.experts?.hostPairs,
    foresees: plan.experts?.prefetch === 'gate',
  });
}

export class GpuExecutable implements Executable {
  readonly bytes: number;
  /** Where the device has the whole model. */
  readonly drawer: GpuDrawer | undefined;
  readonly mtp?: MtpRunner;
  readonly #request: PrepareRequest;
  readonly #gpu: Gpu;
  readonly #program: GpuProgram;
  readonly #buffers: DeviceBuffers;
  readonly #recorder: Recorder;
  /** Where layers' experts are split. */
  readonly #split: SplitRun | undefined;
  readonly #release: () => void;
  readonly #words: Uint32Array<ArrayBuffer>;
  readonly #operations: readonly Operation[];
  #readback: GPUBuffer | undefined;
  /** When what was last read is in {@link #readback}. */
  #mapped: Promise<unknown> | undefined;
  #rows = 0;
  /** Of the last run what is predicted from further ahead; empty where nothing is. */
  #given = new Float32Array(0);
  /** When the last run was submitted. */
  #submittedMs = 0;
  #disposed = false;
  #released: Promise<void> | undefined;

  constructor(
    request: PrepareRequest,
    made: {
      readonly gpu: Gpu;
      readonly program: GpuProgram;
      readonly buffers: DeviceBuffers;
      readonly recorder: Recorder;
      /** Of what predicts further ahead. */
      readonly ahead: Recorder | undefined;
      readonly split: SplitRun | undefined;
      /** Gives the device's memory back. */
      readonly release: () => void;
    },
  ) {
    this.#request = request;
    this.#gpu = made.gpu;
    this.#program = made.program;
    this.#buffers = made.buffers;
    this.#recorder = made.recorder;
    this.#split = made.split;
    this.#release = made.release;
    this.#words = new Uint32Array(made.program.step.words);
    this.#operations = ownOperations(request.graph);
    this.bytes = made.buffers.bytes + (made.split?.bytes ?? 0);
    const { graph } = request;
    if (graph.mtp !== undefined && made.ahead !== undefined) {
      this.mtp = gpuMtpRunner(graph, graph.mtp, made.ahead, {
        given: () => this.#given,
        begin: (step, operations) => this.#begin(step, { operations }),
        encoder: () => made.gpu.device.createCommandEncoder(),
        read: (encoder, parts) => this.#read(encoder, parts),
      });
    }
    const { sampling } = made.program;
    // The host has a part in each step anyway.
    if (sampling !== undefined && this.#split === undefined) {
      this.drawer = new GpuDrawer({
        gpu: made.gpu,
        layout: sampling,
        buffers: made.buffers.sampling as SamplingBuffers,
        encode: (step, draws) => this.#encode(step, draws).encoder,
      });
    }
  }

  /**
   * Checks a step and puts it where the next submission reads it.
   * @param more.slots of which a token may be the one drawn last
   * @param more.operations of the run; default: the model's own
   */
  #begin(
    step: Step,
    { slots = 0, operations = this.#operations }: { slots?: number; operations?: readonly Operation[] } = {},
  ): { readonly shape: RunShape } {
    if (this.#disposed) throw new DisposedError('the GPU backend');
    const { plan, spec, graph } = this.#request;
    const { queue } = this.#gpu.device;
    this.#gpu.check();
    checkStep(step, plan, spec.vocabulary, slots);
    const incoming = incomingRows(graph, step, operations);
    const used = writeStep(step, this.#program.step, this.#words);
    queue.writeBuffer(this.#buffers.step, 0, this.#words, 0, used);
    const target = incoming && this.#buffers.named(incoming.name);
    if (target !== undefined) queue.writeBuffer(target, 0, new Float32Array(incoming?.rows ?? []));
    if (operations === this.#operations) this.#rows = step.tokens.length;
    const visible = step.positions.reduce((most, position) => Math.max(most, position + 1), 0);
    const alone = new Set(step.sequences).size === step.sequences.length;
    return { shape: { rows: step.tokens.length, wanted: step.wanted.length, visible, alone } };
  }

  /** A checked step as commands that are not submitted yet. @param draws which rows' tokens are drawn; absent: none */
  #encode(
    step: Step,
    draws?: Pick<RunShape, 'drawn' | 'adjusts'>,
  ): { readonly encoder: GPUCommandEncoder; readonly shape: RunShape } {
    const { shape } = this.#begin(step, { slots: draws && this.drawer?.slots });
    const encoder = this.#gpu.device.createCommandEncoder();
    this.#recorder.record(encoder, step.mode, { ...shape, ...draws });
    return { encoder, shape };
  }

  async run(step: Step): Promise<Float32Array> {
    if (this.#split !== undefined) return this.#runSplit(step, this.#split);
    const { encoder } = this.#encode(step);
    const given = await this.#read(encoder, this.#outcome(step));
    if (!allFinite(given)) throw await this.#notFinite(step);
    return this.#keep(step, given);
  }

  /** What is read of a run: logits, or the rows for another part, and what is predicted from further ahead. */
  #outcome({ tokens, wanted }: Step): readonly [ReadPart, ...ReadPart[]] {
    const { outgoing, logits, widths, mtp } = this.#request.graph;
    const part = (name: string, rows: number) => ({ name, count: rows * (widths[name] as number) });
    const first = outgoing === undefined ? part(logits, wanted.length) : part(outgoing, tokens.length);
    return mtp === undefined ? [first] : [first, part(mtp.given, tokens.length)];
  }

  /** Keeps what another run goes on from. @returns the rest */
  #keep(step: Step, given: Float32Array): Float32Array {
    const [{ count }] = this.#outcome(step);
    this.#given = given.subarray(count) as Float32Array<ArrayBuffer>;
    return given.subarray(0, count);
  }

  /** The same with experts elsewhere. */
  async #runSplit(step: Step, split: SplitRun): Promise<Float32Array> {
    let met: NonFiniteError | undefined;
    try {
      const given = await this.#runSplitUpTo(step, split, { parts: this.#outcome(step) });
      if (allFinite(given)) return this.#keep(step, given);
    } catch (error) {
      if (!(error instanceof NonFiniteError)) throw error;
      met = error;
    }
    // Who meets it is not always the first.
    throw await this.#notFinite(step, met);
  }

  /** @param upTo.end the first dispatch that is left out; absent: all are run */
  async #runSplitUpTo(
    step: Step,
    split: SplitRun,
    { parts, end }: { readonly parts: readonly ReadPart[]; readonly end?: number },
  ): Promise<Float32Array> {
    const { shape } = this.#begin(step);
    this.#recorder.dispatches = 0;
    const { encoder, submitted } = await split.run(step.mode, shape, end);
    if (this.#disposed) throw new DisposedError('the GPU backend');
    // Read first: that submits the rest.
    const reading = this.#read(encoder, parts);
    // Nothing of a run is on its way when it ends: the next one reads into the same buffer.
    const [given, done] = await Promise.allSettled([reading, submitted()]);
    for (const outcome of [given, done]) if (outcome.status === 'rejected') throw outcome.reason;
    return (given as PromiseFulfilledResult<Float32Array>).value;
  }

  /** How long each dispatch of a step takes by the device's clock; the step is run. Absent without timestamps. */
  async time(step: Step): Promise<DispatchTime[] | undefined> {
    const split = this.#split;
    const { shape } = this.#begin(step);
    if (split === undefined) return this.#recorder.time(step.mode, shape);
    const made = { gpu: this.#gpu, recorder: this.#recorder, program: this.#program };
    return timeSplit({ ...made, split, mode: step.mode, shape, run: () => this.run(step) });
  }

  /** Of layers whose experts are split: what others choose, nobody reads. */
  watch(watcher: ExpertWatcher | undefined): void {
    if (this.#split !== undefined) this.#split.watcher = watcher;
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

  get memory(): DeviceMemoryUse {
    const { bytes, peakBytes } = this.#gpu.memory;
    return { device: 'gpu', bytes, peakBytes };
  }

  bandwidth(): Promise<DeviceBandwidth | undefined> {
    const { memoryBytes = Number.POSITIVE_INFINITY } = this.#request.plan;
    return measureGpuBandwidth(this.#gpu, memoryBytes - this.#gpu.memory.bytes - BESIDE_REGION_BYTES);
  }

  /** A named value of the last run, where no later one has taken its place. */
  async value(name: string): Promise<Float32Array> {
    const width = this.#request.graph.widths[name] as number;
    return this.#read(this.#gpu.device.createCommandEncoder(), [{ name, count: this.#rows * width }]);
  }

  /** Ends and submits what `encoder` holds, and reads parts of buffers afterwards, one behind the other. */
  async #read(encoder: GPUCommandEncoder, parts: readonly ReadPart[]): Promise<Float32Array> {
    const { device } = this.#gpu;
    const count = parts.reduce((sum, part) => sum + part.count, 0);
    const bytes = Math.max(count, 1) * 4;
    if (this.#readback === undefined || this.#readback.size < bytes) {
      this.#readback?.destroy();
      this.#readback = device.createBuffer({
        label: 'readback',
        size: resultBytes(count),
        usage: MAP_READ | COPY_DST,
      });
    }
    // Where nothing is read, something is all the same: that the run is done.
    if (count === 0) encoder.copyBufferToBuffer(this.#buffers.step, 0, this.#readback, 0, 4);
    let at = 0;
    for (const part of parts) {
      const source = this.#buffers.named(part.name);
      if (source === undefined) throw new InternalError(`no value is called ${part.name}`);
      if (part.count > 0) encoder.copyBufferToBuffer(source, 0, this.#readback, at, part.count * 4);
      at += part.count * 4;
    }
    device.queue.submit([encoder.finish()]);
    this.#submittedMs = performance.now();
    const read = readBuffer(this.#gpu, this.#readback, { bytes, what: 'result', ended: () => this.#disposed });
    this.#mapped = read.mapped;
    const result = new Float32Array(await read.bytes, 0, count);
    this.#gpu.check();
    return result;
  }

  /**
   * Names the layer by the run itself, again and cut short after each layer: no other run pays for it.
   * @param met where no layer ends with it
   */
  async #notFinite(step: Step, met?: NonFiniteError): Promise<NonFiniteError> {
    const { graph, spec } = this.#request;
    const { mode } = step;
    let layer = spec.layers.length;
    for (const { number, name, end } of endsOfLayers(graph, layer, this.#program.dispatches[mode])) {
      const count = step.tokens.length * (graph.widths[name] as number);
      if (await this.#isFiniteUpTo(step, { name, count, end })) continue;
      layer = number;
      break;
    }
    if (met !== undefined && layer === spec.layers.length) return met;
    const where = layer < 0 ? 'the embedding' : `layer ${layer} (blk.${layer})`;
    return notFinite(
      step,
      layer,
      layer < spec.layers.length ? `${where}: a value` : 'after the last layer (output): a logit',
    );
  }

  /** Runs a step again, cut short. */
  async #isFiniteUpTo(
    step: Step,
    upTo: { readonly name: string; readonly count: number; readonly end: number },
  ): Promise<boolean> {
    if (this.#split === undefined) {
      const { shape: run } = this.#begin(step);
      const encoder = this.#gpu.device.createCommandEncoder();
      this.#recorder.recordRange(encoder, step.mode, { run, first: 0, end: upTo.end });
      return allFinite(await this.#read(encoder, [upTo]));
    }
    try {
      return allFinite(await this.#runSplitUpTo(step, this.#split, { parts: [upTo], end: upTo.end }));
    } catch (error) {
      if (error instanceof NonFiniteError) return false;
      throw error;
    }
  }

  abandon(): void {
    this.#disposed = true;
    // What waits for them fails.
    this.#readback?.destroy();
    this.#split?.abandon();
    void this.drawer?.dispose();
  }

  dispose(): Promise<void> {
    this.#released ??= this.#dispose();
    return this.#released;
  }

  async #dispose(): Promise<void> {
    this.abandon();
    // Dawn ends a process whose thread is gone while it still waits for memory.
    await Promise.allSettled([this.#mapped, this.#split?.settled(), this.drawer?.dispose()]);
    this.#release();
  }
}
