/**
 * Runs whose layers' experts are split between the device's slots and the CPU. A run is submitted up to each layer's choice of
 * experts; the device goes on with those in slots while the host reads the choice and has the others computed, and then sums
 * both in the order of the ranks. While the device works, the commands that come next are encoded already. A layer all of whose
 * experts are in slots when a run begins does not stop it.
 *
 * Tables of slots, and slots themselves, are written by the queue, in order with what was submitted: no dispatch sees a change
 * that came after it.
 */

import { DisposedError } from '../../errors.ts';
import type { ExpertWatcher } from '../../experts/watch.ts';
import type { ExpertRunner, GivenRouting } from '../backend.ts';
import type { Mode } from '../kernel.ts';
import type { Binding, Choice, Pause, RunShape } from './builder.ts';
import type { Gpu } from './device.ts';
import { type Late, LateChoices, lateBytesOf } from './late-choices.ts';
import type { Pulse } from './pulse.ts';
import { readBuffer } from './readback.ts';
import type { Recorder } from './recorder.ts';
import type { Carrier, Placing, Residency, RunRows } from './residency.ts';
import { GivenChoices, HostResults, SlotTables } from './split-buffers.ts';
import { Balance, type Chosen, chosenOf, type Group, pairsOf, rowsOf } from './split-choice.ts';
import { type Running, SplitCommands, stopBytes, widthOf } from './split-commands.ts';
import { CpuPart, type CpuStarted } from './split-cpu.ts';

const MAP_READ = 0x1;
const COPY_DST = 0x8;

export interface SplitOptions {
  readonly gpu: Gpu;
  readonly recorder: Recorder;
  readonly pauses: Readonly<Record<Mode, readonly Pause[]>>;
  /** What steps foresee of layers' choices. */
  readonly foreseen: readonly Choice[];
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

/** A run on its way, and what the host does while experts are computed. */
type Run = Running & { readonly aside: () => void };

export class SplitRun {
  /** Told what runs do with their experts. */
  watcher: ExpertWatcher | undefined;
  readonly #options: SplitOptions;
  readonly #readback: GPUBuffer;
  readonly #tables: SlotTables;
  readonly #results: HostResults;
  readonly #balance: Balance;
  readonly #cpu: CpuPart;
  readonly #given: GivenChoices | undefined;
  readonly #commands: SplitCommands;
  /** Absent where each layer stops in every run, and nothing is foreseen. */
  readonly #late: LateChoices | undefined;
  #reading: Promise<unknown> | undefined;
  #ended = false;

  constructor(options: SplitOptions) {
    this.#options = options;
    const { gpu, pauses, shape, routing, residency, elsewhere, pulse } = options;
    const { hidden, rows, experts, used } = shape;
    this.#tables = new SlotTables(options, { experts, residency });
    this.#results = new HostResults(options, shape);
    this.#balance = new Balance(shape);
    const width = widthOf(pauses);
    this.#readback = gpu.device.createBuffer({
      label: 'choices of experts, and rows for those elsewhere',
      size: stopBytes(pauses, { rows, hidden }),
      usage: MAP_READ | COPY_DST,
    });
    this.#cpu = new CpuPart({ elsewhere, pulse, results: this.#results, used });
    const canBeWhole = pauses.prompt.filter((pause) => pause.canBeWhole);
    // The layer that stops, and those that do not.
    const layers = 1 + canBeWhole.length;
    this.#given = routing && new GivenChoices(options, routing, { rows, used, width, layers });
    const bytes = lateBytesOf(options, rows);
    if (bytes > 0) this.#late = new LateChoices(options, { ...shape, bytes });
    const [results, given, readback] = [this.#results, this.#given, this.#readback];
    this.#commands = new SplitCommands({ ...options, ...shape, results, given, readback });
  }

  /** Bytes on the device, and mapped ones. */
  get bytes(): number {
    return this.#readback.size + this.#options.carrier.bytes + (this.#late?.bytes ?? 0);
  }

  /** For measurements: asked for each pass over a layer's experts in slots. */
  set timestamps(timestamps: SplitCommands['timestamps']) {
    this.#commands.timestamps = timestamps;
  }

  /**
   * Runs a run up to the last layer that stops.
   * @param end the first dispatch that is left out, and the layers behind it
   * @returns commands for the rest, which are not submitted yet, and what is to be done once they are
   * @throws NonFiniteError `non_finite` naming the layer
   */
  async run(
    mode: Mode,
    shape: RunShape,
    end = Number.POSITIVE_INFINITY,
  ): Promise<{ readonly encoder: GPUCommandEncoder; readonly submitted: () => Promise<void> }> {
    const { residency, carrier, foreseen } = this.#options;
    const { rows } = shape;
    const brought = mode === 'step' ? residency.begin(mode, rows) : [];
    this.#tables.writeChanged();
    const carrying = carrier.begin(brought);
    const run = this.#begin({ mode, shape, end, aside: () => carrying.advance() });
    // Of a run that is cut short nobody wants to know.
    const all = end === Number.POSITIVE_INFINITY;
    const late: Late = {
      whole: all && (residency.learns || this.watcher !== undefined) ? run.whole : [],
      foreseen: all && mode === 'step' ? foreseen : [],
    };
    const choices = [...late.whole, ...late.foreseen];
    const submitted = async () => {
      if (brought.length > 0) await this.#arrive(brought, carrying.finish());
      if (choices.length > 0) await this.#hear(late, { mode, rows });
      this.#end({ mode, rows });
      if (mode === 'prompt') await this.#bring(residency.begin(mode, rows));
    };
    try {
      const encoder = await this.#runLayers(run);
      if (choices.length > 0) this.#late?.record(encoder, choices, rows);
      return { encoder, submitted };
    } catch (error) {
      residency.abort();
      if (!this.#ended) this.#tables.writeChanged();
      throw error;
    }
  }

  /** Which layers a run stops in: slots change between runs only. */
  #begin({ mode, shape, end, aside }: Omit<Run, 'stops' | 'whole'>): Run {
    const { pauses, routing, residency } = this.#options;
    const list = pauses[mode].filter(({ joins }) => joins < end);
    const isWhole = ({ canBeWhole, layer }: Pause) => canBeWhole && residency.holdsAll(layer);
    const whole = list.filter(isWhole);
    this.watcher?.began(mode, shape.rows);
    routing?.advance(shape.rows);
    for (const [index, pause] of whole.entries()) this.#given?.write(pause, { rows: shape.rows, place: index + 1 });
    if (whole.length > 0) this.#results.clear();
    return { mode, shape, end, aside, stops: list.filter((pause) => !isWhole(pause)), whole };
  }

  /** What layers have chosen that the run did not stop in, and what was foreseen of layers. */
  async #hear({ whole, foreseen }: Late, run: RunRows): Promise<void> {
    const { residency, shape } = this.#options;
    const read = (await this.#late?.read([...whole, ...foreseen], run.rows)) ?? [];
    for (const [index, ids] of read.entries()) {
      const pause = whole[index];
      if (pause === undefined) {
        residency.named((foreseen[index - whole.length] as Choice).layer, ids, shape.used);
        continue;
      }
      residency.chosen(pause.layer, ids, run);
      this.watcher?.routed(pause.layer, ids, { hits: ids.length, passed: 0 });
    }
  }

  #end(run: RunRows): void {
    const { residency } = this.#options;
    for (const [layer, accuracy] of residency.ended(run)) this.watcher?.foreseen(layer, accuracy);
    for (const [layer, experts] of residency.pinned()) this.watcher?.pinned(layer, experts);
    this.watcher?.ended();
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

  async #runLayers(run: Run): Promise<GPUCommandEncoder> {
    const { mode, shape, stops } = run;
    const { rows } = shape;
    let encoder = this.#commands.upTo(run, { first: 0, pause: stops[0] });
    for (const [index, pause] of stops.entries()) {
      this.#checkEnded();
      const askedMs = performance.now();
      this.#given?.write(pause, { rows });
      const given = this.#given?.ids(pause.layer);
      const read = this.#ask(encoder, pause, run);
      let next: GPUCommandEncoder | undefined;
      const encodeNext = () => {
        next ??= this.#commands.upTo(run, { first: pause.joins, pause: stops[index + 1] });
        return next;
      };
      // While the device computes; where it has no experts that takes less, and the CPU's part will take longer.
      if (mode === 'prompt' || this.#commands.computesHere(pause.layer)) encodeNext();
      const bytes = await read;
      const chosen = chosenOf(bytes, { ...this.#options.shape, routeWidth: pause.routeWidth, rows, given });
      await this.#answer(run, pause, {
        ...chosen,
        roundTripMs: performance.now() - askedMs,
        rows: mode === 'step' ? new Float32Array(bytes, rows * pause.routeWidth * 4) : undefined,
        meanwhile: encodeNext,
      });
      encoder = encodeNext();
    }
    return encoder;
  }

  abandon(): void {
    this.#ended = true;
    this.#readback.destroy();
    this.#late?.destroy();
    this.#given?.destroy();
    this.#cpu.destroy();
    this.#options.carrier.destroy();
  }

  /** Settles when nothing is being read any more. */
  async settled(): Promise<void> {
    await Promise.allSettled([this.#reading, this.#late?.settled(), this.#options.carrier.settled()]);
  }

  /** What it uses is gone soon. @throws DisposedError `disposed` */
  #checkEnded(): void {
    if (this.#ended) throw new DisposedError('the GPU backend');
  }

  #submit(encoder: GPUCommandEncoder): void {
    this.#checkEnded();
    this.#options.gpu.device.queue.submit([encoder.finish()]);
  }

  #ask(encoder: GPUCommandEncoder, { routeWidth }: Pause, { mode, shape: run }: Run): Promise<ArrayBuffer> {
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

  /** Brings what a layer's absent experts make. @param chosen.rows absent: they are still on the device */
  async #answer(
    run: Run,
    pause: Pause,
    chosen: Chosen & {
      readonly rows: Float32Array | undefined;
      readonly roundTripMs: number;
      /** What the host does while the CPU computes. */
      readonly meanwhile: () => void;
    },
  ): Promise<void> {
    const { residency, carrier } = this.#options;
    const { mode, shape } = run;
    const runRows = shape.rows;
    const { layer } = pause;
    const { ids, groups, rows, roundTripMs } = chosen;
    residency.chosen(layer, ids, { mode, rows: runRows });
    const absent = groups.filter(({ expert }) => residency.slotOf(layer, expert) === undefined);
    const { passing, rest } = mode === 'prompt' ? this.#balance.share(absent) : { passing: [], rest: absent };
    const startMs = performance.now();
    let passedMs = startMs;
    if (rest.length === 0) {
      await this.#pass(run, pause, passing);
      passedMs = performance.now();
      this.#checkEnded();
      this.#results.clear();
    } else if (rows !== undefined) {
      const started = this.#cpu.start({ layer, rows, groups: rest, rowAt: (row) => row, runRows });
      try {
        this.#cpu.beside(started, run.aside);
        chosen.meanwhile();
      } finally {
        this.#finish(started, shape);
      }
      this.#cpu.learn(started);
    } else {
      const gathered = await this.#gather(pause, rest);
      const started = this.#cpu.start({ layer, groups: rest, ...gathered, runRows });
      try {
        // Weights are copied while the CPU computes.
        await this.#pass(run, pause, passing);
      } finally {
        passedMs = performance.now();
        this.#finish(started, shape);
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
  async #pass(run: Run, pause: Pause, groups: readonly Group[]): Promise<void> {
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
        this.#submit(this.#commands.slots(run, pause));
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
    const input = this.#commands.input(pause);
    for (const { row, at, count } of wanted.runs) {
      encoder.copyBufferToBuffer(input, row * bytes, this.#readback, at * bytes, count * bytes);
    }
    this.#submit(encoder);
    return { rows: new Float32Array(await this.#read(wanted.count * bytes)), rowAt: wanted.rowAt };
  }

  /** Waits for the CPU's part, which was begun and is to be ended whatever else has failed. */
  #finish({ wait, pairs }: CpuStarted, { rows }: RunShape): void {
    const made = wait();
    this.#checkEnded();
    this.#results.write(made, { pairs, rows });
  }
}
