/** The CPU's part of a split layer: its pairs are handed over, and its results brought to the device. */

import { NonFiniteError } from '../../errors.ts';
import type { ExpertRunner } from '../backend.ts';
import { allFinite } from './finite.ts';
import type { Pulse } from './pulse.ts';
import type { HostResults } from './split-buffers.ts';
import { type Group, pairsOf } from './split-choice.ts';

/** How much of what the CPU takes, as it did last, the device is kept awake: the rest is for what that was more than this time. */
const AWAKE = 0.5;
/** What the CPU must be expected to take for the host to have the time to keep the device awake, and to copy a matrix. */
const WORTH_A_PULSE_MS = 0.1;
const WORTH_A_COPY_MS = 0.25;

/** Rows and the pairs of them that the CPU computes. */
export interface CpuWork {
  readonly layer: number;
  /** [rows, hidden] */
  readonly rows: Float32Array;
  readonly groups: readonly Group[];
  /** Where among `rows` a row of the run stands. */
  readonly rowAt: (row: number) => number;
  /** Rows of the run. */
  readonly runRows: number;
}

/** A part under way. It is to be finished, whatever else fails. */
export interface CpuStarted {
  readonly pairs: number;
  /** When it began. */
  readonly atMs: number;
  /** Waits for the CPU. */
  readonly wait: () => Float32Array;
}

export class CpuPart {
  readonly #elsewhere: ExpertRunner;
  readonly #results: HostResults;
  readonly #used: number;
  readonly #pulse: Pulse | undefined;
  /** What a pair of a step took, the last time. */
  #pairMs = 0;

  constructor(made: {
    readonly elsewhere: ExpertRunner;
    readonly results: HostResults;
    readonly used: number;
    readonly pulse: Pulse | undefined;
  }) {
    this.#elsewhere = made.elsewhere;
    this.#results = made.results;
    this.#used = made.used;
    this.#pulse = made.pulse;
  }

  /** @throws NonFiniteError `non_finite` naming the layer */
  start({ layer, rows, groups, rowAt, runRows }: CpuWork): CpuStarted {
    if (!allFinite(rows)) {
      throw new NonFiniteError(
        `layer ${layer} (blk.${layer}): what its experts are given is not finite; the weights are damaged or the model does not fit its format`,
        { data: { layer } },
      );
    }
    const pairs = pairsOf(groups);
    const rowOf = new Int32Array(pairs);
    const expertOf = new Int32Array(pairs);
    const places = this.#results.begin(runRows);
    let at = 0;
    for (const { expert, pairs: own } of groups) {
      for (const pair of own) {
        rowOf[at] = rowAt(Math.floor(pair / this.#used));
        expertOf[at] = expert;
        places[pair] = ++at;
      }
    }
    const atMs = performance.now();
    return { wait: this.#elsewhere.start({ layer, rows, rowOf, expertOf }), pairs, atMs };
  }

  /** What the host does while the CPU computes a step's pairs, as far as it has the time. */
  beside({ pairs }: CpuStarted, aside: () => void): void {
    const expectedMs = this.#pairMs * pairs;
    if (expectedMs > WORTH_A_PULSE_MS) this.#pulse?.beat(AWAKE * expectedMs);
    if (expectedMs > WORTH_A_COPY_MS) aside();
  }

  /** Says that a step's pairs are done. */
  learn({ pairs, atMs }: CpuStarted): void {
    this.#pairMs = (performance.now() - atMs) / pairs;
  }

  destroy(): void {
    this.#pulse?.destroy();
  }
}
