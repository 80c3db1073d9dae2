/**
 * Runs whose layers' experts are split between the device's slots and the CPU. A run is submitted up to each layer's choice of
 * experts; the device goes on with those in slots while the host reads the choice and has the others computed, and then sums
 * both in the order of the ranks. While the device works, the commands that come next are encoded already.
 *
 * Tables of slots, and slots themselves, are written by the queue, in order with what was submitted: no dispatch sees a change
 * that came after it.
 */

import { DisposedError, NonFiniteError } from '../../errors.ts';
import type { ExpertWatcher } from '../../experts/watch.ts';
import type { ExpertRunner, GivenRouting } from '../backend.ts';
import type { Mode } from '../kernel.ts';
import { ABSENT, type Binding, type Pause, type RunShape } from './builder.ts';
import type { Gpu } from './device.ts';
import { allFinite } from './finite.ts';
import type { Pulse } from './pulse.ts';
import { readBuffer } from './readback.ts';
import type { Recorder } from './recorder.ts';
import type { Carrier, Placing, Residency } from './residency.ts';
import { HostResults, SlotTables } from './split-buffers.ts';
import { Balance, type Chosen, chosenOf, type Group, pairsOf, rowsOf } from './split-choice.ts';

const MAP_READ = 0x1;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;

export interface SplitOptions {
  readonly gpu: Gpu;
  readonly recorder: Recorder;
  readonly pauses: Readonly<Record<Mode, readonly Pause[]>>;
  readonly bufferOf: (binding: Binding) => GPUBuffer;
  readonly elsewhere: ExpertRunner;
  readonly residency: Residency;
  readonly carrier: Carrier;
  readonly shape: SplitShape;
  /** For measurements: which experts rows take, whatever the router says. */
  readonly routing?: GivenRouting;
  /** Absent where it would be of no use. */
  readonly pulse?: Pulse;
}

/** Numbers of a split model. */
export interface SplitShape {
  readonly hidden: number;
  readonly used: number;
  readonly experts: number;
  /** Whether there is an expert that every row goes through. */
  readonly shared: boolean;
  /** Most rows of a run. */
  readonly rows: number;
  /** Most results of the CPU's in a layer's run. */
  readonly hostPairs: number;
  /** Slots that experts of many rows pass through: the first of them, by layer, and how many. */
  readonly passing: (layer: number) => { readonly first: number; readonly count: number };
  /** Which absent experts of a prompt pass through the device. */
  readonly passes: 'all' | 'balanced';
}

/** A run on its way. */
interface Running {
  readonly mode: Mode;
  readonly shape: RunShape;
  /** The first dispatch that is left out. */
  readonly end: number;
  /** What the host does while experts are computed. */
  readonly aside: () => void;
}

/** How much of what the CPU takes, as it did last, the device is kept awake: the rest is for what that was more than this time. */
const AWAKE = 0.5;
/** What the CPU must be expected to take for the host to have the time to keep the device awake, and to copy a matrix. */
const WORTH_A_PULSE_MS = 0.1;
const WORTH_A_COPY_MS = 0.25;

/** The CPU's part of a layer, under way. */
interface Started {
  /** Does the caller's share, and waits for the others. */
  readonly finish: () => Float32Array;
  readonly pairs: number;
  /** When it began. */
  readonly atMs: number;
}

export class SplitRun {
  /** Told what runs do with their experts. */
  watcher: ExpertWatcher | undefined;
  /** For measurements: asked for each pass over a layer's experts in slots. */
  timestamps: ((layer: number) => GPUComputePassTimestampWrites | undefined) | undefined;
  readonly #options: SplitOptions;
  readonly #readback: GPUBuffer;
  readonly #tables: SlotTables;
  readonly #results: HostResults;
  readonly #balance: Balance;
  /** What a pair of a step took the CPU, the last time. */
  #pairMs = 0;
  /** Choices that are given, on their way to where the router's stand. */
  readonly #given: GPUBuffer | undefined;
  #reading: Promise<unknown> | undefined;
  #ended = false;

  constructor(options: SplitOptions) {
    this.#options = options;
    const { gpu, pauses, shape, routing, residency } = options;
    const { hidden, rows, experts } = shape;
    this.#tables = new SlotTables(options, { experts, residency });
    this.#results = new HostResults(options, shape);
    this.#balance = new Balance(shape);
    const width = Math.max(...[...pauses.prompt, ...pauses.step].map(({ routeWidth }) => routeWidth));
    this.#readback = gpu.device.createBuffer({
      label: 'choices of experts, and rows for those elsewhere',
      size: rows * (width + hidden) * 4,
      usage: MAP_READ | COPY_DST,
    });
    if (routing !== undefined) {
      this.#given = gpu.device.createBuffer({
        label: 'given choices',
        size: rows * width * 4,
        usage: COPY_SRC | COPY_DST,
      });
    }
  }

  /** Bytes on the device, and mapped ones. */
  get bytes(): number {
    return this.#readback.size + this.#options.carrier.bytes;
  }

  /**
   * Runs a run up to the last split layer.
   * @param end the first dispatch that is left out, and the layers behind it
   * @returns commands for the rest, which are not submitted yet, and what is to be done once they are
   * @throws NonFiniteError `non_finite` naming the layer
   */
  async run(
    mode: Mode,
    shape: RunShape,
    end = Number.POSITIVE_INFINITY,
  ): Promise<{ readonly encoder: GPUCommandEncoder; readonly submitted: () => Promise<void> }> {
    const { residency, carrier } = this.#options;
    const brought = mode === 'step' ? residency.begin(mode, shape.rows) : [];
    this.#tables.writeChanged();
    const carrying = carrier.begin(brought);
    const submitted = async () => {
      residency.ended(shape.rows);
      if (mode === 'prompt') await this.#bring(residency.begin(mode, shape.rows));
      else if (brought.length > 0) await this.#arrive(brought, carrying.finish());
    };
    try {
      return { encoder: await this.#runLayers({ mode, shape, end, aside: () => carrying.advance() }), submitted };
    } catch (error) {
      residency.abort();
      if (!this.#ended) this.#tables.writeChanged();
      throw error;
    }
  }

  /** Brings experts to slots between runs. */
  async #bring(placings: readonly Placing[], signal?: AbortSignal): Promise<void> {
    if (placings.length === 0) return;
    this.#tables.writeChanged();
    await this.#arrive(placings, this.#options.carrier.carry(placings, signal));
  }

  /** Experts that are on their way have slots once they are there; if they never are, nobody has these. */
  async #arrive(placings: readonly Placing[], carried: Promise<void>): Promise<void> {
    const { residency, carrier } = this.#options;
    try {
      await carried;
      residency.commit();
    } catch (error) {
      residency.abort();
      throw error;
    } finally {
      if (!this.#ended) this.#tables.writeChanged();
    }
    for (const { layer } of placings) {
      this.watcher?.brought(layer, { experts: 1, bytes: carrier.expertBytes(layer), to: 'slots' });
    }
  }

  /** Fills the slots before the first run. @throws `signal.reason` when aborted */
  async fill(signal?: AbortSignal): Promise<void> {
    await this.#bring(this.#options.residency.fill(), signal);
  }

  async #runLayers(running: Running): Promise<GPUCommandEncoder> {
    const { pauses, routing } = this.#options;
    const { mode, shape } = running;
    const list = pauses[mode].filter(({ joins }) => joins < running.end);
    this.watcher?.began(mode, shape.rows);
    routing?.advance(shape.rows);
    let encoder = this.#encode(running, { first: 0, pause: list[0] });
    for (const [index, pause] of list.entries()) {
      this.#checkEnded();
      const askedMs = performance.now();
      const given = this.#giveRouting(pause, shape);
      const read = this.#ask(encoder, pause, running);
      let next: GPUCommandEncoder | undefined;
      const encodeNext = () => {
        next ??= this.#encode(running, { first: pause.joins, pause: list[index + 1] });
        return next;
      };
      // While the device computes; where it has no experts that takes less, and the CPU's part will take longer.
      if (mode === 'prompt' || this.#computesHere(pause.layer)) encodeNext();
      const bytes = await read;
      const chosen = chosenOf(bytes, { ...this.#options.shape, routeWidth: pause.routeWidth, rows: shape.rows, given });
      await this.#answer(running, pause, {
        ...chosen,
        roundTripMs: performance.now() - askedMs,
        rows: mode === 'step' ? new Float32Array(bytes, shape.rows * pause.routeWidth * 4) : undefined,
        meanwhile: encodeNext,
      });
      encoder = encodeNext();
    }
    this.watcher?.ended();
    return encoder;
  }

  abandon(): void {
    this.#ended = true;
    this.#readback.destroy();
    this.#given?.destroy();
    this.#options.pulse?.destroy();
    this.#options.carrier.destroy();
  }

  /** Settles when nothing is being read any more. */
  async settled(): Promise<void> {
    await Promise.allSettled([this.#reading, this.#options.carrier.settled()]);
  }

  #buffer(name: string): GPUBuffer {
    return this.#options.bufferOf({ kind: 'buffer', name, access: 'read' });
  }

  /**
   * A run's commands from `first` up to the next stop, and what is read there: the choice, and of few rows these themselves.
   * Behind them those for the experts in slots: one submission costs the host less than two.
   */
  #encode(
    { mode, shape: run, end }: Running,
    { first, pause }: { readonly first: number; readonly pause: Pause | undefined },
  ): GPUCommandEncoder {
    const { gpu, recorder, shape } = this.#options;
    const encoder = gpu.device.createCommandEncoder();
    recorder.recordRange(encoder, mode, { run, first, end: pause?.asks ?? end });
    if (pause === undefined) return encoder;
    const routeBytes = run.rows * pause.routeWidth * 4;
    const route = this.#buffer(pause.route);
    if (this.#given !== undefined) encoder.copyBufferToBuffer(this.#given, 0, route, 0, routeBytes);
    encoder.copyBufferToBuffer(route, 0, this.#readback, 0, routeBytes);
    if (mode === 'step') {
      const bytes = run.rows * shape.hidden * 4;
      encoder.copyBufferToBuffer(this.#input(pause), 0, this.#readback, routeBytes, bytes);
    }
    this.#recordSlots(encoder, { mode, shape: run }, pause);
    return encoder;
  }

  /** The rows that experts elsewhere read. */
  #input({ input }: Pause): GPUBuffer {
    return this.#options.bufferOf({ kind: 'value', name: input, access: 'read' });
  }

  /** The commands for experts in slots. */
  #encodeSlots(running: Pick<Running, 'mode' | 'shape'>, pause: Pause): GPUCommandEncoder {
    const encoder = this.#options.gpu.device.createCommandEncoder();
    this.#recordSlots(encoder, running, pause);
    return encoder;
  }

  #recordSlots(
    encoder: GPUCommandEncoder,
    { mode, shape: run }: Pick<Running, 'mode' | 'shape'>,
    { layer, asks, joins }: Pause,
  ): void {
    if (mode === 'step' && !this.#computesHere(layer)) return;
    const timestampWrites = this.timestamps?.(layer);
    this.#options.recorder.recordRange(encoder, mode, { run, first: asks, end: joins, timestampWrites });
  }

  /** Whether the device has any part in a layer's experts. */
  #computesHere(layer: number): boolean {
    const { shape, residency } = this.#options;
    return shape.shared || residency.holds(layer);
  }

  /** What it uses is gone soon. @throws DisposedError `disposed` */
  #checkEnded(): void {
    if (this.#ended) throw new DisposedError('the GPU backend');
  }

  #submit(encoder: GPUCommandEncoder): void {
    this.#checkEnded();
    this.#options.gpu.device.queue.submit([encoder.finish()]);
  }

  #ask(encoder: GPUCommandEncoder, { routeWidth }: Pause, { mode, shape: run }: Running): Promise<ArrayBuffer> {
    const { hidden } = this.#options.shape;
    this.#submit(encoder);
    return this.#read(run.rows * (routeWidth + (mode === 'step' ? hidden : 0)) * 4);
  }

  async #read(bytes: number): Promise<ArrayBuffer> {
    const { gpu } = this.#options;
    const ended = () => this.#ended;
    const read = readBuffer(gpu, this.#readback, { bytes, what: 'choice of experts', ended });
    this.#reading = read.mapped;
    const found = await read.bytes;
    gpu.check();
    return found;
  }

  /** The routing that was given, if any was, to go over what the router chose; all experts of a row weigh the same. */
  #giveRouting({ layer, routeWidth }: Pause, run: RunShape): Uint32Array | undefined {
    const { routing, shape, gpu } = this.#options;
    if (routing === undefined || this.#given === undefined) return undefined;
    const { used } = shape;
    const ids = routing.ids(layer);
    const words = new Uint32Array(run.rows * routeWidth);
    const weights = new Float32Array(words.buffer);
    for (let row = 0; row < run.rows; row++) {
      const at = row * routeWidth;
      words.set(ids.subarray(row * used, (row + 1) * used), at);
      weights.fill(1 / used, at + used, at + 2 * used);
      weights[at + 2 * used] = 1;
    }
    gpu.device.queue.writeBuffer(this.#given, 0, words);
    return ids;
  }

  /** Brings what a layer's absent experts make. @param chosen.rows absent: they are still on the device */
  async #answer(
    running: Running,
    pause: Pause,
    chosen: Chosen & {
      readonly rows: Float32Array | undefined;
      readonly roundTripMs: number;
      /** What the host does while the CPU computes. */
      readonly meanwhile: () => void;
    },
  ): Promise<void> {
    const { residency, carrier } = this.#options;
    const { mode, shape: run } = running;
    const { layer } = pause;
    const { ids, groups, rows, roundTripMs } = chosen;
    residency.chosen(layer, ids, run.rows);
    const absent = groups.filter(({ expert }) => residency.slotOf(layer, expert) === undefined);
    const { passing, rest } = mode === 'prompt' ? this.#balance.share(absent) : { passing: [], rest: absent };
    const startMs = performance.now();
    let passedMs = startMs;
    if (rest.length === 0) {
      await this.#pass(running, pause, passing);
      passedMs = performance.now();
      this.#checkEnded();
      this.#results.clear();
    } else if (rows !== undefined) {
      // This thread's code for the GPU stays in its core's caches so: the CPU's part would drive it out.
      const started = this.#start(pause, rows, { groups: rest, rowAt: (row) => row, apart: true });
      const expectedMs = this.#pairMs * started.pairs;
      try {
        if (expectedMs > WORTH_A_PULSE_MS) this.#options.pulse?.beat(AWAKE * expectedMs);
        if (expectedMs > WORTH_A_COPY_MS) running.aside();
        chosen.meanwhile();
      } finally {
        this.#finish(started, run);
      }
      this.#pairMs = (performance.now() - started.atMs) / started.pairs;
    } else {
      const gathered = await this.#gather(pause, rest);
      const started = this.#start(pause, gathered.rows, { groups: rest, rowAt: gathered.rowAt, apart: true });
      try {
        // Weights are copied while the CPU computes.
        await this.#pass(running, pause, passing);
      } finally {
        passedMs = performance.now();
        this.#finish(started, run);
      }
      this.#balance.learn({
        experts: passing.length,
        passMs: passedMs - started.atMs,
        pairs: started.pairs,
        waitedMs: performance.now() - passedMs,
      });
    }
    const { watcher } = this;
    if (watcher === undefined) return;
    watcher.routed(layer, ids, { hits: ids.length - pairsOf(absent), passed: pairsOf(passing) });
    watcher.waited(layer, { roundTripMs, passMs: passedMs - startMs, cpuMs: performance.now() - passedMs });
    const experts = passing.length;
    if (experts > 0) watcher.brought(layer, { experts, bytes: experts * carrier.expertBytes(layer), to: 'run' });
  }

  /** Has the device compute experts that are brought to it for this run alone. */
  async #pass(running: Running, pause: Pause, groups: readonly Group[]): Promise<void> {
    if (groups.length === 0) return;
    const { carrier, shape } = this.#options;
    const { layer } = pause;
    const { first, count } = shape.passing(layer);
    try {
      for (let from = 0; from < groups.length; from += count) {
        const placings = groups
          .slice(from, from + count)
          .map(({ expert }, index): Placing => ({ layer, expert, slot: first + index }));
        await carrier.carry(placings);
        this.#tables.writeOnly(layer, placings);
        this.#submit(this.#encodeSlots(running, pause));
      }
    } finally {
      if (!this.#ended) this.#tables.write(layer);
    }
  }

  /** Reads the rows that some experts' pairs are of, and nothing else. */
  async #gather(
    pause: Pause,
    groups: readonly Group[],
  ): Promise<{ readonly rows: Float32Array; readonly rowAt: (row: number) => number }> {
    const { gpu, shape } = this.#options;
    const wanted = rowsOf(groups, shape);
    const bytes = shape.hidden * 4;
    const encoder = gpu.device.createCommandEncoder();
    const input = this.#input(pause);
    for (const { row, at, count } of wanted.runs) {
      encoder.copyBufferToBuffer(input, row * bytes, this.#readback, at * bytes, count * bytes);
    }
    this.#submit(encoder);
    return { rows: new Float32Array(await this.#read(wanted.count * bytes)), rowAt: wanted.rowAt };
  }

  /** Waits for the CPU's part, which was begun and is to be ended whatever else has failed. */
  #finish({ finish, pairs }: Started, { rows }: RunShape): void {
    const made = finish();
    this.#checkEnded();
    this.#results.write(made, { pairs, rows });
  }

  /** Starts the CPU's part. */
  #start(
    { layer }: Pause,
    rows: Float32Array,
    how: {
      readonly groups: readonly Group[];
      readonly rowAt: (row: number) => number;
      /** Whether this thread is free meanwhile. */
      readonly apart?: boolean;
    },
  ): Started {
    const { groups, rowAt, apart } = how;
    const { elsewhere, shape } = this.#options;
    if (!allFinite(rows)) {
      throw new NonFiniteError(
        `layer ${layer} (blk.${layer}): what its experts are given is not finite; the weights are damaged or the model does not fit its format`,
        { data: { layer } },
      );
    }
    const pairs = pairsOf(groups);
    const rowOf = new Int32Array(pairs);
    const expertOf = new Int32Array(pairs);
    const { places } = this.#results;
    places.fill(ABSENT);
    let at = 0;
    for (const { expert, pairs: own } of groups) {
      for (const pair of own) {
        rowOf[at] = rowAt(Math.floor(pair / shape.used));
        expertOf[at] = expert;
        places[pair] = at++;
      }
    }
    const atMs = performance.now();
    return { finish: elsewhere.start({ layer, rows, rowOf, expertOf }, { apart }), pairs, atMs };
  }
}
