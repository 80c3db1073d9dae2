/**
 * Sends runs to where their tokens are drawn, the host or the device, and hears them out in the order in which they were sent. Of
 * runs whose logits the host reads one is on its way at a time.
 */

import { type Drawer, type Drawn, type Executable, RUNS_AHEAD, type Step } from '../backend/backend.ts';
import { Flights, type Outcome } from './flights.ts';
import type { Timeline } from './kv-cache.ts';
import type { Speculator } from './speculate/speculator.ts';
import type { Turn } from './speculate/verify.ts';

/** What a run gave: of the host's the turns' rows of logits one after the other, of the device's a token for each turn. */
export interface Landed {
  readonly turns: readonly Turn[];
  readonly logits?: Float32Array;
  readonly drawn?: Drawn;
}

/** What is done when a run has come back. */
export interface Landing {
  failed(error: unknown): void | Promise<void>;
  landed(given: Landed): void;
  /** After that. @param elapsedMs since it was sent, or since the run before it was dealt with if that was later */
  done?(elapsedMs: number): void;
}

export interface RunsOptions {
  readonly executable: Pick<Executable, 'run' | 'drawer'>;
  readonly speculator?: Speculator | undefined;
  /** In milliseconds. */
  now(): number;
}

export class Runs {
  readonly #options: RunsOptions;
  readonly #flights: Flights;
  #readsLogits = false;
  /** When a run was last dealt with. */
  #doneAt = Number.NEGATIVE_INFINITY;

  constructor(options: RunsOptions) {
    this.#options = options;
    this.#flights = new Flights(options.executable.drawer === undefined ? 1 : RUNS_AHEAD);
  }

  get count(): number {
    return this.#flights.count;
  }

  get full(): boolean {
    return this.#flights.full;
  }

  /** Whether a run is on its way whose logits the host reads: they are valid until the next one. */
  get readsLogits(): boolean {
    return this.#readsLogits;
  }

  /** Waits for the run that was sent first, where there is one. */
  land(): Promise<void> {
    return this.#flights.land();
  }

  landAll(): Promise<void> {
    return this.#flights.landAll();
  }

  /**
   * Runs a step.
   * @param timelines by sequence
   */
  async run(
    step: Step,
    turns: readonly Turn[],
    { onHost, timelines }: { readonly onHost: boolean; readonly timelines: readonly Timeline[] },
  ): Promise<Landed> {
    const { executable, speculator } = this.#options;
    if (!onHost) {
      const draws = turns.map(({ request: { settings, slot, prompt, drawn } }) => ({
        settings,
        slot: slot as number,
        prompt: prompt.length,
        index: drawn,
      }));
      return { turns, drawn: await (executable.drawer as Drawer).draw(step, draws) };
    }
    const ran = executable.run(step);
    return { turns, logits: await (speculator === undefined ? ran : speculator.watch(ran, step, timelines)) };
  }

  /** Starts a run, and deals with it when its turn has come. @param onHost whether its logits are read */
  send(onHost: boolean, start: () => Promise<Landed>, { failed, landed, done }: Landing): void {
    const { now } = this.#options;
    // Some compute before they return.
    const sentAt = now();
    if (onHost) this.#readsLogits = true;
    this.#flights.send(start(), (outcome: Outcome<Landed>) => {
      if (onHost) this.#readsLogits = false;
      if ('error' in outcome) return failed(outcome.error);
      landed(outcome.value);
      const doneAt = now();
      done?.(doneAt - Math.max(sentAt, this.#doneAt));
      this.#doneAt = doneAt;
    });
  }
}
