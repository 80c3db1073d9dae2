/**
 * Runs whose layers' experts are split between the device's slots and the CPU. A run is submitted up to each layer's choice of
 * experts; the device goes on with those in slots while the host reads the choice and has the others computed, and then sums
 * both in the order of the ranks. While the device works, the commands that come next are encoded already.
 *
 * Tables of slots, and slots themselves, are written by the queue, in order with what was submitted: no dispatch sees a change
 * that came after it.
 */

import { NonFiniteError } from '../../errors.ts';
import type { ExpertRunner, GivenRouting, SplitTimes } from '../backend.ts';
import type { Mode } from '../kernel.ts';
import { ABSENT, type Binding, HOST_MADE, HOST_PLACES, type Pause, type RunShape } from './builder.ts';
import type { Gpu } from './device.ts';
import { allFinite } from './finite.ts';
import { readBuffer } from './readback.ts';
import type { Recorder } from './recorder.ts';
import type { Carrier, Placing, Residency } from './residency.ts';
import { type Chosen, chosenOf, type Group, pairsOf, rowsOf, throughDevice } from './split-choice.ts';

const MAP_READ = 0x1;
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
}

/** Numbers of a split model. */
export interface SplitShape {
  readonly hidden: number;
  readonly used: number;
  readonly experts: number;
  /** Most rows of a run. */
  readonly rows: number;
  /** Most results of the CPU's in a layer's run. */
  readonly hostPairs: number;
  /** Slots that experts of many rows pass through: the first of them, by layer, and how many. */
  readonly passing: (layer: number) => { readonly first: number; readonly count: number };
  /** An absent expert of a prompt passes through the device when at least so many rows chose it. */
  readonly passingRows: number;
}

/** A run on its way. */
interface Running {
  readonly mode: Mode;
  readonly shape: RunShape;
  /** What the host does while experts are computed. */
  readonly aside: () => void;
}

/** The CPU's part of a layer, under way. */
interface Started {
  /** Does the caller's share, and waits for the others. */
  readonly finish: () => Float32Array;
  readonly pairs: number;
}

export class SplitRun {
  readonly times: SplitTimes = { runs: 0, stops: 0, waitMs: 0, computeMs: 0, passMs: 0, hits: 0, misses: 0, passed: 0 };
  readonly #options: SplitOptions;
  readonly #readback: GPUBuffer;
  readonly #places: Uint32Array<ArrayBuffer>;
  /** Whether the device's places name results of the host's. */
  #placed = false;
  #reading: Promise<unknown> | undefined;
  #ended = false;

  constructor(options: SplitOptions) {
    this.#options = options;
    const { gpu, pauses, shape } = options;
    const { hidden, used, rows } = shape;
    const width = Math.max(...[...pauses.prompt, ...pauses.step].map(({ routeWidth }) => routeWidth));
    this.#readback = gpu.device.createBuffer({
      label: 'choices of experts, and rows for those elsewhere',
      size: rows * (width + hidden) * 4,
      usage: MAP_READ | COPY_DST,
    });
    this.#places = new Uint32Array(rows * used).fill(ABSENT);
    // No results of the host's are there before the first.
    gpu.device.queue.writeBuffer(this.#buffer(HOST_PLACES), 0, this.#places);
  }

  /** Bytes on the device, and mapped ones. */
  get bytes(): number {
    return this.#readback.size + this.#options.carrier.bytes;
  }

  /**
   * Runs a run up to the last split layer.
   * @returns commands for the rest, which are not submitted yet, and what is to be done once they are
   * @throws NonFiniteError `non_finite` naming the layer
   */
  async run(
    mode: Mode,
    shape: RunShape,
  ): Promise<{ readonly encoder: GPUCommandEncoder; readonly submitted: () => Promise<void> }> {
    const { residency, carrier } = this.#options;
    const brought = mode === 'step' ? residency.begin(mode, shape.rows) : [];
    this.writeTables();
    let carried: Promise<void> | undefined;
    const aside = () => {
      carried ??= carrier.carry(brought);
      // Awaited at the run's end, which a failure may come before.
      carried.catch(() => {});
    };
    const submitted = async () => {
      residency.ended(shape.rows);
      if (mode === 'prompt') await this.#bring(residency.begin(mode, shape.rows));
      else if (brought.length > 0) {
        aside();
        await carried;
        residency.commit();
        this.writeTables();
      }
    };
    try {
      return { encoder: await this.#runLayers({ mode, shape, aside }), submitted };
    } catch (error) {
      // What is on its way to a slot is there before anything else goes to it.
      await Promise.allSettled([carried]);
      residency.abort();
      this.writeTables();
      throw error;
    }
  }

  /** Brings experts to slots between runs. */
  async #bring(placings: readonly Placing[]): Promise<void> {
    const { residency, carrier } = this.#options;
    if (placings.length === 0) return;
    this.writeTables();
    await carrier.carry(placings);
    residency.commit();
    this.writeTables();
  }

  /** Fills the slots before the first run. */
  async fill(): Promise<void> {
    await this.#bring(this.#options.residency.fill());
  }

  async #runLayers(running: Running): Promise<GPUCommandEncoder> {
    const { pauses, routing } = this.#options;
    const { mode, shape } = running;
    const list = pauses[mode];
    this.times.runs++;
    routing?.advance(shape.rows);
    let encoder = this.#encode(running, { first: 0, pause: list[0] });
    for (const [index, pause] of list.entries()) {
      const askedMs = performance.now();
      const read = this.#ask(encoder, pause, running);
      const given = this.#giveRouting(pause, shape);
      this.#submit(this.#encodeSlots(running, pause));
      // While the device computes.
      encoder = this.#encode(running, { first: pause.joins, pause: list[index + 1] });
      const bytes = await read;
      const chosen = chosenOf(bytes, { ...this.#options.shape, routeWidth: pause.routeWidth, rows: shape.rows, given });
      this.times.waitMs += performance.now() - askedMs;
      this.times.stops++;
      await this.#answer(running, pause, {
        ...chosen,
        rows: mode === 'step' ? new Float32Array(bytes, shape.rows * pause.routeWidth * 4) : undefined,
      });
    }
    return encoder;
  }

  abandon(): void {
    this.#ended = true;
    this.#readback.destroy();
    this.#options.carrier.destroy();
  }

  /** Settles when nothing is being read any more. */
  async settled(): Promise<void> {
    await Promise.allSettled([this.#reading, this.#options.carrier.settled()]);
  }

  #buffer(name: string): GPUBuffer {
    return this.#options.bufferOf({ kind: 'buffer', name, access: 'read' });
  }

  /** A run's commands from `first` up to the next stop, and what is read there: the choice, and of few rows these themselves. */
  #encode(
    { mode, shape: run }: Running,
    { first, pause }: { readonly first: number; readonly pause: Pause | undefined },
  ): GPUCommandEncoder {
    const { gpu, recorder, shape } = this.#options;
    const encoder = gpu.device.createCommandEncoder();
    recorder.recordRange(encoder, mode, { run, first, end: pause?.asks ?? Number.POSITIVE_INFINITY });
    if (pause === undefined) return encoder;
    const routeBytes = run.rows * pause.routeWidth * 4;
    encoder.copyBufferToBuffer(this.#buffer(pause.route), 0, this.#readback, 0, routeBytes);
    if (mode === 'prompt') return encoder;
    const bytes = run.rows * shape.hidden * 4;
    encoder.copyBufferToBuffer(this.#input(pause), 0, this.#readback, routeBytes, bytes);
    return encoder;
  }

  /** The rows that experts elsewhere read. */
  #input({ input }: Pause): GPUBuffer {
    return this.#options.bufferOf({ kind: 'value', name: input, access: 'read' });
  }

  /** The commands for experts in slots. */
  #encodeSlots({ mode, shape: run }: Pick<Running, 'mode' | 'shape'>, { asks, joins }: Pause): GPUCommandEncoder {
    const { gpu, recorder } = this.#options;
    const encoder = gpu.device.createCommandEncoder();
    recorder.recordRange(encoder, mode, { run, first: asks, end: joins });
    return encoder;
  }

  #submit(encoder: GPUCommandEncoder): void {
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

  /** Writes the routing that was given, if any was, over what the router chose; all experts of a row weigh the same. */
  #giveRouting({ layer, route, routeWidth }: Pause, run: RunShape): Uint32Array | undefined {
    const { routing, shape, gpu } = this.#options;
    if (routing === undefined) return undefined;
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
    gpu.device.queue.writeBuffer(this.#buffer(route), 0, words);
    return ids;
  }

  /** Brings what a layer's absent experts make. @param chosen.rows absent: they are still on the device */
  async #answer(
    running: Running,
    pause: Pause,
    chosen: Chosen & { readonly rows: Float32Array | undefined },
  ): Promise<void> {
    const { residency, shape } = this.#options;
    const { mode, shape: run } = running;
    const { layer } = pause;
    const { ids, groups, rows } = chosen;
    residency.chosen(layer, ids, run.rows);
    const absent = groups.filter(({ expert }) => residency.slotOf(layer, expert) === undefined);
    const { passing, rest } = mode === 'prompt' ? throughDevice(absent, shape) : { passing: [], rest: absent };
    const startMs = performance.now();
    let passedMs = startMs;
    if (rest.length === 0) {
      await this.#pass(running, pause, passing);
      passedMs = performance.now();
      this.#clearPlaces();
    } else if (rows !== undefined) {
      this.#compute(this.#start(pause, rows, { groups: rest, rowAt: (row) => row }), running.aside);
    } else {
      // The rows come, and are computed with, while others' weights are copied.
      const started = this.#gather(pause, rest).then(({ rows: gathered, rowAt }) =>
        this.#start(pause, gathered, { groups: rest, rowAt }),
      );
      const [outcome] = await Promise.allSettled([started, this.#pass(running, pause, passing)]);
      passedMs = performance.now();
      this.#compute(await started);
      if (outcome.status === 'rejected') throw outcome.reason;
    }
    const { times } = this;
    times.passMs += passedMs - startMs;
    times.computeMs += performance.now() - passedMs;
    times.passed += pairsOf(passing);
    times.misses += pairsOf(rest);
    times.hits += ids.length - pairsOf(absent);
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
        const table = new Uint32Array(shape.experts).fill(ABSENT);
        for (const { expert, slot } of placings) table[expert] = slot;
        this.#queueTable(layer, table);
        this.#submit(this.#encodeSlots(running, pause));
      }
    } finally {
      this.#writeTable(layer);
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

  /** Starts the CPU's part. */
  #start(
    { layer }: Pause,
    rows: Float32Array,
    { groups, rowAt }: { readonly groups: readonly Group[]; readonly rowAt: (row: number) => number },
  ): Started {
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
    this.#places.fill(ABSENT);
    let at = 0;
    for (const { expert, pairs: own } of groups) {
      for (const pair of own) {
        rowOf[at] = rowAt(Math.floor(pair / shape.used));
        expertOf[at] = expert;
        this.#places[pair] = at++;
      }
    }
    return { finish: elsewhere.start({ layer, rows, rowOf, expertOf }), pairs };
  }

  /** The caller's share of the CPU's part, and where its results go. */
  #compute({ finish, pairs }: Started, aside?: () => void): void {
    const { gpu, shape } = this.#options;
    const { queue } = gpu.device;
    let made: Float32Array;
    try {
      aside?.();
    } finally {
      // The others wait for this thread.
      made = finish();
    }
    queue.writeBuffer(this.#buffer(HOST_MADE), 0, made as Float32Array<ArrayBuffer>, 0, pairs * shape.hidden);
    queue.writeBuffer(this.#buffer(HOST_PLACES), 0, this.#places);
    this.#placed = true;
  }

  #clearPlaces(): void {
    if (!this.#placed) return;
    this.#places.fill(ABSENT);
    this.#options.gpu.device.queue.writeBuffer(this.#buffer(HOST_PLACES), 0, this.#places);
    this.#placed = false;
  }

  /** Tells the device what has changed of who is in slots. Not while a run is under way. */
  writeTables(): void {
    for (const layer of this.#options.residency.changed()) this.#writeTable(layer);
  }

  /** What the residency says, to the device. */
  #writeTable(layer: number): void {
    const { residency, shape } = this.#options;
    const table = new Uint32Array(shape.experts);
    for (let expert = 0; expert < shape.experts; expert++) table[expert] = residency.slotOf(layer, expert) ?? ABSENT;
    this.#queueTable(layer, table);
  }

  #queueTable(layer: number, table: Uint32Array<ArrayBuffer>): void {
    const { gpu, bufferOf } = this.#options;
    gpu.device.queue.writeBuffer(bufferOf({ kind: 'slots', layer }), 0, table);
  }
}
