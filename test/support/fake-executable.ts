/**
 * An executable that needs no weights: it keeps the tokens themselves in its cache pages, and a row's logits follow from
 * every token that the page table shows it. Wrong positions, pages or rewinds therefore change what it says.
 */

import assert from 'node:assert/strict';
import {
  type DeviceBandwidth,
  type Executable,
  PAGE_ROWS,
  type RunProfile,
  type Step,
} from '../../src/backend/backend.ts';

export interface FakeOptions {
  readonly pages: number;
  readonly vocabulary: number;
  /** Called before each run; may throw. */
  onRun?(step: Step): void;
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

  constructor(options: FakeOptions) {
    this.#options = options;
    this.#cache = new Int32Array(options.pages * PAGE_ROWS).fill(-1);
  }

  async run(step: Step): Promise<Float32Array> {
    assert.equal(this.disposed, false);
    this.#options.onRun?.(step);
    const { tokens, positions, sequences, pageTables, wanted, mode } = step;
    this.runs.push({ mode, tokens: [...tokens], positions: [...positions] });
    const { vocabulary } = this.#options;
    const slot = (sequence: number, position: number) => {
      const page = pageTables[sequence]?.[Math.floor(position / PAGE_ROWS)];
      assert.ok(page !== undefined && page >= 0 && page < this.#options.pages, `no page for position ${position}`);
      return page * PAGE_ROWS + (position % PAGE_ROWS);
    };
    const states = Array.from(tokens, (token, row) => {
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
    });
    return logits;
  }

  async dispose(): Promise<void> {
    this.disposed = true;
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
