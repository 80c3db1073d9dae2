/**
 * An executable that needs no weights: it keeps the tokens themselves in its cache pages, and a row's logits follow from
 * every token that the page table shows it. Wrong positions, pages or rewinds therefore change what it says.
 */

import assert from 'node:assert/strict';
import {
  type DeviceBandwidth,
  type Draw,
  type Drawer,
  type Drawn,
  type Executable,
  PAGE_ROWS,
  type RunProfile,
  type Step,
} from '../../src/backend/backend.ts';
import type { SamplerSettings } from '../../src/backend/sampling.ts';
import { Sampler } from '../../src/engine/sampler.ts';
import { ConclaveError, NonFiniteError } from '../../src/errors.ts';

export interface FakeOptions {
  readonly pages: number;
  readonly vocabulary: number;
  /** Called before each run; may throw. */
  onRun?(step: Step): void;
  /** Whether the logits of a token's row are not finite. */
  poisons?(token: number, position: number): boolean;
}

export class FakeExecutable implements Executable {
  readonly bytes = 0;
  /** Every run, copied. */
  readonly runs: {
    readonly mode: string;
    readonly tokens: readonly number[];
    readonly positions: readonly number[];
  }[] = [];
  disposed = false;
  readonly #options: FakeOptions;
  readonly #cache: Int32Array;
  #given: Float32Array | undefined;

  constructor(options: FakeOptions) {
    this.#options = options;
    this.#cache = new Int32Array(options.pages * PAGE_ROWS).fill(-1);
  }

  async run(step: Step): Promise<Float32Array> {
    const logits = this.compute(step);
    if (logits.some(Number.isNaN)) throw new NonFiniteError('layer 3: NaN');
    // The results of the run before are no longer valid.
    this.#given?.fill(Number.NaN);
    this.#given = logits;
    return logits;
  }

  /** [wanted, vocabulary], at once: runs are done in the order in which they are asked for. */
  protected compute(step: Step): Float32Array {
    assert.equal(this.disposed, false);
    this.#options.onRun?.(step);
    const { tokens, positions, sequences, pageTables, wanted, mode } = step;
    this.runs.push({ mode, tokens: [...tokens], positions: [...positions] });
    const { vocabulary, poisons } = this.#options;
    const slot = (sequence: number, position: number) => {
      const page = pageTables[sequence]?.[Math.floor(position / PAGE_ROWS)];
      assert.ok(page !== undefined && page >= 0 && page < this.#options.pages, `no page for position ${position}`);
      return page * PAGE_ROWS + (position % PAGE_ROWS);
    };
    const states = Array.from(tokens, (token, row) => {
      assert.ok(token >= 0 && token < vocabulary, `token ${token}`);
      const sequence = sequences[row]!;
      const position = positions[row]!;
      this.#cache[slot(sequence, position)] = token;
      let state = 17;
      for (let at = 0; at <= position; at++) state = mix(state, this.#cache[slot(sequence, at)]!);
      return state;
    });
    const logits = new Float32Array(wanted.length * vocabulary);
    wanted.forEach((row, index) => {
      for (let id = 0; id < vocabulary; id++)
        logits[index * vocabulary + id] = (mix(states[row]!, id) >>> 8) * 2 ** -20;
      if (poisons?.(tokens[row]!, positions[row]!) === true) logits[index * vocabulary + 7] = Number.NaN;
    });
    return logits;
  }

  async dispose(): Promise<void> {
    this.disposed = true;
  }
}

/** What a slot holds: the tokens of its request, and the last one drawn. */
interface FakeSlot {
  readonly settings: SamplerSettings;
  readonly tokens: number[];
  last?: number;
}

export interface DrawingOptions extends FakeOptions {
  readonly slots?: number;
  /** Settings that only the host draws by. */
  refuses?(settings: SamplerSettings): boolean;
  /** How many turns of the event loop the tokens of run number `run` take to come. */
  late?(run: number): number;
}

/** One that draws tokens itself, as a device does: at once and in order, and the host hears of it later. */
export class DrawingExecutable extends FakeExecutable implements Drawer {
  readonly drawer: Drawer = this;
  readonly slots: number;
  /** Runs that the host has not heard of yet, and the most there were. */
  onTheirWay = 0;
  mostOnTheirWay = 0;
  /** Rows whose token the host did not know when it sent them. */
  unseen = 0;
  readonly #options: DrawingOptions;
  readonly #held = new Map<number, FakeSlot>();
  #before: Promise<void> = Promise.resolve();
  #drawn = 0;

  constructor(options: DrawingOptions) {
    super(options);
    this.#options = options;
    this.slots = options.slots ?? 64;
  }

  takes(settings: SamplerSettings): true | string {
    return this.#options.refuses?.(settings) !== true || 'is not to be drawn here';
  }

  begin(slot: number, settings: SamplerSettings, tokens: ArrayLike<number>): void {
    assert.ok(slot >= 0 && slot < this.slots);
    this.#held.set(slot, { settings, tokens: Array.from(tokens) });
  }

  async draw(step: Step, draws: readonly Draw[]): Promise<Drawn> {
    this.mostOnTheirWay = Math.max(this.mostOnTheirWay, ++this.onTheirWay);
    const { promise: told, resolve } = Promise.withResolvers<void>();
    const before = this.#before;
    this.#before = told;
    const turns = this.#options.late?.(this.#drawn++) ?? 0;
    try {
      return this.#drawAll(step, draws);
    } finally {
      await before;
      for (let turn = 0; turn < turns; turn++) await new Promise((done) => setImmediate(done));
      this.onTheirWay--;
      resolve();
    }
  }

  #drawAll(step: Step, draws: readonly Draw[]): Drawn {
    assert.equal(draws.length, step.wanted.length);
    assert.equal(new Set(draws.map(({ slot }) => slot)).size, draws.length);
    const tokens = step.tokens.map((token) => {
      if (token >= 0) return token;
      this.unseen++;
      return this.#held.get(~token)?.last ?? -1;
    });
    const { vocabulary } = this.#options;
    const logits = this.compute({ ...step, tokens });
    return draws.map(({ settings, slot, prompt, index }, row): number | ConclaveError => {
      const held = this.#held.get(slot);
      assert.ok(held !== undefined && held.settings === settings, `slot ${slot} is another's`);
      assert.equal(held.tokens.length, prompt + index);
      const sampler = new Sampler(settings);
      sampler.observePrompt(held.tokens.slice(0, prompt));
      for (const token of held.tokens.slice(prompt)) sampler.observe(token);
      try {
        held.last = sampler.sample(logits.subarray(row * vocabulary, (row + 1) * vocabulary), index);
        held.tokens.push(held.last);
        return held.last;
      } catch (error) {
        assert.ok(error instanceof ConclaveError);
        // What follows is drawn from something all the same, as on a device.
        held.last = 0;
        held.tokens.push(0);
        return error;
      }
    });
  }
}

/** One that tells where its time goes: a nanosecond a row, in one kernel a mode beside one that both have. */
export class ProfilingExecutable extends FakeExecutable {
  /** How often the bandwidth was measured. */
  measured = 0;

  async profile(step: Step, repetitions: number): Promise<RunProfile> {
    await this.run(step);
    const rows = step.tokens.length;
    const kernels = [
      { label: 'both', dispatches: 1, ns: 2 * rows },
      { label: step.mode, dispatches: repetitions, ns: rows },
    ];
    return { dispatches: 1 + repetitions, encodeMs: 1, runMs: 2, kernels };
  }

  async bandwidth(): Promise<DeviceBandwidth> {
    return { bytesPerSecond: 1e9, bytes: ++this.measured };
  }
}

function mix(state: number, value: number): number {
  let hash = Math.imul(state ^ (value + 0x9e3779b9), 0x85ebca6b);
  hash ^= hash >>> 13;
  hash = Math.imul(hash, 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
