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
import { type Read, readBuffer } from './readback.ts';
import type { Recorder } from './recorder.ts';

const MAP_READ = 0x1;
const COPY_DST = 0x8;

/** An expert and the slot of its layer's slab that it lies in, or goes to. */
export interface Placing {
  readonly layer: number;
  readonly expert: number;
  readonly slot: number;
}

/** Which experts are in slots, as the host knows it: what it says changes between runs only. */
export interface Residency {
  slotOf(layer: number, expert: number): number | undefined;
  /** Which experts the rows of a layer's run chose, [rows · used]. */
  chosen(layer: number, ids: ArrayLike<number>, rows: number): void;
  /** A run over so many rows has been through all layers. */
  ended(rows: number): void;
  /** Before a run: experts that go to slots now. What was in these slots is not there any more. */
  begin(mode: Mode): readonly Placing[];
  /** The experts of `begin` are in their slots. */
  commit(): void;
  /** They are not, and nothing else is. */
  abort(): void;
  /** Layers of which {@link slotOf} answers otherwise than when this was asked last. */
  changed(): Iterable<number>;
}

/** Copies experts to slots. */
export interface Carrier {
  /**
   * What is submitted once it settles finds them there. A few are on their way when it returns.
   * @throws DeviceLostError `device_lost`
   */
  carry(placings: readonly Placing[]): Promise<void>;
  /** Gives up what is on its way. */
  destroy(): void;
  /** Settles when nothing is on its way any more. */
  settled(): Promise<void>;
  /** Bytes on the device. */
  readonly bytes: number;
}

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

/** What a layer's run chose. */
interface Choice {
  readonly ids: Uint32Array;
  readonly rows: Float32Array;
}

/** The (row, rank) pairs of one expert. */
interface Group {
  readonly expert: number;
  readonly pairs: number[];
}

export class SplitRun {
  readonly #options: SplitOptions;
  readonly #readback: GPUBuffer;
  readonly #places: Uint32Array<ArrayBuffer>;
  /** Whether the device's places name results of the host's. */
  #placed = false;
  #reading: Promise<unknown> | undefined;
  #ended = false;
  readonly times: SplitTimes = {
    runs: 0,
    stops: 0,
    waitMs: 0,
    computeMs: 0,
    passMs: 0,
    hits: 0,
    misses: 0,
    passed: 0,
  };

  constructor(options: SplitOptions) {
    this.#options = options;
    const { gpu, pauses, shape } = options;
    const { hidden, used, rows } = shape;
    const width = Math.max(...[...pauses.prompt, ...pauses.step].map(({ routeWidth }) => routeWidth));
    this.#readback = gpu.device.createBuffer({
      label: 'choices',
      size: rows * (width + hidden) * 4,
      usage: MAP_READ | COPY_DST,
    });
    this.#places = new Uint32Array(rows * used).fill(ABSENT);
    // No results of the host's are there before the first.
    gpu.device.queue.writeBuffer(this.#buffer(HOST_PLACES), 0, this.#places);
  }

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
    const placings = residency.begin(mode);
    this.writeTables();
    let carried: Promise<void> | undefined;
    const carry = () => {
      carried ??= carrier.carry(placings);
      // Awaited at the run's end, which a failure may come before.
      carried.catch(() => {});
    };
    const submitted = async () => {
      residency.ended(shape.rows);
      if (placings.length === 0) return;
      carry();
      await carried;
      residency.commit();
      this.writeTables();
    };
    try {
      return { encoder: await this.#runLayers(mode, shape, carry), submitted };
    } catch (error) {
      // What is on its way to a slot is there before anything else goes to it.
      await Promise.allSettled([carried]);
      residency.abort();
      this.writeTables();
      throw error;
    }
  }

  async #runLayers(mode: Mode, shape: RunShape, carry: () => void): Promise<GPUCommandEncoder> {
    const { gpu, pauses } = this.#options;
    const list = pauses[mode];
    this.times.runs++;
    this.#options.routing?.advance(shape.rows);
    let encoder = this.#encode(mode, shape, { first: 0, pause: list[0] });
    for (const [index, pause] of list.entries()) {
      const askedMs = performance.now();
      const read = this.#ask(encoder, pause, shape);
      const given = this.#giveRouting(pause, shape);
      this.#submit(this.#encodeRange(mode, shape, pause));
      // While the device computes.
      encoder = this.#encode(mode, shape, { first: pause.joins, pause: list[index + 1] });
      const choice = choiceOf(await read.bytes, { pause, run: shape, given });
      gpu.check();
      this.times.waitMs += performance.now() - askedMs;
      this.times.stops++;
      if (!allFinite(choice.rows)) throw notFinite(pause.layer, mode);
      await this.#answer({ mode, shape, pause, choice, carry });
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

  /** A run's commands from `first` up to the next stop, and what is read there. */
  #encode(
    mode: Mode,
    run: RunShape,
    { first, pause }: { readonly first: number; readonly pause: Pause | undefined },
  ): GPUCommandEncoder {
    const { gpu, recorder, bufferOf, shape } = this.#options;
    const encoder = gpu.device.createCommandEncoder();
    recorder.recordRange(encoder, mode, { run, first, end: pause?.asks ?? Number.POSITIVE_INFINITY });
    if (pause === undefined) return encoder;
    const routeBytes = run.rows * pause.routeWidth * 4;
    encoder.copyBufferToBuffer(this.#buffer(pause.route), 0, this.#readback, 0, routeBytes);
    const input = bufferOf({ kind: 'value', name: pause.input, access: 'read' });
    encoder.copyBufferToBuffer(input, 0, this.#readback, routeBytes, run.rows * shape.hidden * 4);
    return encoder;
  }

  /** The commands for experts in slots. */
  #encodeRange(mode: Mode, run: RunShape, { asks, joins }: Pause): GPUCommandEncoder {
    const { gpu, recorder } = this.#options;
    const encoder = gpu.device.createCommandEncoder();
    recorder.recordRange(encoder, mode, { run, first: asks, end: joins });
    return encoder;
  }

  #submit(encoder: GPUCommandEncoder): void {
    this.#options.gpu.device.queue.submit([encoder.finish()]);
  }

  #ask(encoder: GPUCommandEncoder, { routeWidth }: Pause, run: RunShape): Read {
    const { gpu, shape } = this.#options;
    this.#submit(encoder);
    const bytes = run.rows * (routeWidth + shape.hidden) * 4;
    const read = readBuffer(gpu, this.#readback, { bytes, what: 'choice of experts', ended: () => this.#ended });
    this.#reading = read.mapped;
    return read;
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

  /** Brings what a layer's absent experts make. */
  async #answer(given: {
    readonly mode: Mode;
    readonly shape: RunShape;
    readonly pause: Pause;
    readonly choice: Choice;
    readonly carry: () => void;
  }): Promise<void> {
    const { mode, shape: run, pause, choice, carry } = given;
    const { residency, shape } = this.#options;
    const { layer } = pause;
    const groups = groupsOf(choice.ids, shape.experts);
    residency.chosen(layer, choice.ids, run.rows);
    const absent = groups.filter(({ expert }) => residency.slotOf(layer, expert) === undefined);
    const passing = mode === 'prompt' ? this.#passing(absent) : [];
    const through = new Set(passing);
    const rest = absent.filter((group) => !through.has(group));
    const startMs = performance.now();
    await this.#pass(run, pause, passing);
    const passedMs = performance.now();
    if (rest.length === 0) this.#clearPlaces();
    else this.#compute(layer, choice, rest, mode === 'step' ? carry : undefined);
    const { times } = this;
    const pairsOf = (some: readonly Group[]) => some.reduce((sum, { pairs }) => sum + pairs.length, 0);
    times.passMs += passedMs - startMs;
    times.computeMs += performance.now() - passedMs;
    times.passed += pairsOf(passing);
    times.misses += pairsOf(rest);
    times.hits += choice.ids.length - pairsOf(absent);
  }

  /** Of absent experts those that are worth bringing to the device, those of most rows first. */
  #passing(absent: readonly Group[]): readonly Group[] {
    const { hostPairs, passingRows } = this.#options.shape;
    const order = [...absent].sort((a, b) => b.pairs.length - a.pairs.length || a.expert - b.expert);
    let left = order.reduce((sum, { pairs }) => sum + pairs.length, 0);
    const through: Group[] = [];
    for (const group of order) {
      if (group.pairs.length < passingRows && left <= hostPairs) break;
      through.push(group);
      left -= group.pairs.length;
    }
    return through;
  }

  /** Has the device compute experts that are brought to it for this run alone. */
  async #pass(run: RunShape, pause: Pause, groups: readonly Group[]): Promise<void> {
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
        this.#submit(this.#encodeRange('prompt', run, pause));
      }
    } finally {
      this.#writeTable(layer);
    }
  }

  /** The CPU's part, and where its results are. */
  #compute(layer: number, { rows }: Choice, groups: readonly Group[], aside?: () => void): void {
    const { elsewhere, gpu, shape } = this.#options;
    const { queue } = gpu.device;
    const pairs = groups.reduce((sum, group) => sum + group.pairs.length, 0);
    const rowOf = new Int32Array(pairs);
    const expertOf = new Int32Array(pairs);
    this.#places.fill(ABSENT);
    let at = 0;
    for (const { expert, pairs: own } of groups) {
      for (const pair of own) {
        rowOf[at] = Math.floor(pair / shape.used);
        expertOf[at] = expert;
        this.#places[pair] = at++;
      }
    }
    const made = elsewhere.compute({ layer, rows, rowOf, expertOf }, aside);
    // A copy: what the queue takes must not be shared with other threads.
    queue.writeBuffer(this.#buffer(HOST_MADE), 0, made.slice(0, pairs * shape.hidden));
    queue.writeBuffer(this.#buffer(HOST_PLACES), 0, this.#places, 0, (rows.length / shape.hidden) * shape.used);
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

function notFinite(layer: number, mode: Mode): NonFiniteError {
  return new NonFiniteError(
    `layer ${layer} (blk.${layer}): what its experts are given is not finite, in a ${mode} run; the weights are damaged or the ` +
      'model does not fit its format',
    { data: { layer, mode } },
  );
}

function choiceOf(
  bytes: ArrayBuffer,
  chosen: { readonly pause: Pause; readonly run: RunShape; readonly given: Uint32Array | undefined },
): Choice {
  const { routeWidth } = chosen.pause;
  const { rows } = chosen.run;
  if (chosen.given !== undefined) return { ids: chosen.given, rows: new Float32Array(bytes, rows * routeWidth * 4) };
  const routed = new Uint32Array(bytes, 0, rows * routeWidth);
  // A row's ids, then as many weights, and the shared expert's factor.
  const used = (routeWidth - 1) / 2;
  const ids = new Uint32Array(rows * used);
  for (let row = 0; row < rows; row++) ids.set(routed.subarray(row * routeWidth, row * routeWidth + used), row * used);
  return { ids, rows: new Float32Array(bytes, rows * routeWidth * 4) };
}

/** Pairs by expert, in the order of experts. */
function groupsOf(ids: Uint32Array, experts: number): Group[] {
  const groups: (Group | undefined)[] = new Array(experts);
  for (let pair = 0; pair < ids.length; pair++) {
    const expert = Math.min(ids[pair] as number, experts - 1);
    const group = groups[expert] ?? { expert, pairs: [] };
    group.pairs.push(pair);
    groups[expert] = group;
  }
  return groups.filter((group) => group !== undefined);
}
