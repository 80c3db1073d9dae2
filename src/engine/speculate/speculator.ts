/**
 * Drafting as the scheduler sees it: who drafts, whether it pays at the moment, what came of it. A drafter that fails is told of
 * once and does no more; no request ends for it.
 */

import type { Step } from '../../backend/backend.ts';
import { ConclaveError, DeviceLostError, recordError } from '../../errors.ts';
import type { Timeline } from '../kv-cache.ts';
import type { Request } from '../request.ts';
import { type GateRates, type StepRecord, ThroughputGate } from './gate.ts';
import type { DraftSource } from './source.ts';
import { type SpeculationSnapshot, SpeculationStats } from './stats.ts';
import { shareRows, type Turn } from './verify.ts';

export interface SpeculatorOptions {
  readonly source: DraftSource;
  /** Most tokens drafted at a time. */
  readonly drafts: number;
  /** That it takes for itself. */
  readonly bytes?: number;
  /** Whether drafting stops while it does not pay; default true. */
  readonly gated?: boolean;
  readonly onFault?: (error: ConclaveError) => void;
}

/** Of a step: its rows, and the tokens that a timeline may hold. */
export interface StepBounds {
  readonly rows: number;
  readonly context: number;
}

export class Speculator {
  readonly drafts: number;
  readonly bytes: number;
  readonly #source: DraftSource;
  readonly #gated: boolean;
  readonly #onFault: SpeculatorOptions['onFault'];
  readonly #stats: SpeculationStats;
  /** By the requests of a step, in powers of two: what a draft costs depends on how many rows there are without. */
  readonly #gates = new Map<number, ThroughputGate>();
  #latest: ThroughputGate;
  #failed = false;

  constructor({ source, drafts, bytes = 0, gated = true, onFault }: SpeculatorOptions) {
    this.#source = source;
    this.drafts = drafts;
    this.bytes = bytes;
    this.#gated = gated;
    this.#onFault = onFault;
    this.#stats = new SpeculationStats(drafts);
    this.#latest = this.#gate(1);
  }

  /** Whether the drafter sees every run of the model: then none of them is one that a device draws tokens from by itself. */
  get watches(): boolean {
    return !this.#failed && this.#source.ran !== undefined;
  }

  /** Whether a step of so many requests drafts. */
  draftsFor(requests: number): boolean {
    if (this.#failed || requests === 0) return false;
    return !this.#gated || this.#gate(requests).drafts;
  }

  /**
   * What each request's next tokens may be: no more than its answer can take, than the step has rows for, and than there are free
   * pages for, which are then its timeline's. A page of each for the first row is reserved.
   */
  async draft(requests: readonly Request[], { rows, context }: StepBounds): Promise<readonly Turn[]> {
    const wanted = requests.map(({ prompt, generated, maxTokens }) =>
      Math.min(this.drafts, maxTokens - generated - 1, context - prompt.length - generated - 1),
    );
    const most = shareRows(wanted, rows).map((drafts, index) => {
      const { timeline } = requests[index] as Request;
      const fit = Math.min(drafts, timeline.room - 1);
      timeline.reserve(1 + fit);
      return fit;
    });
    const asks = requests.flatMap((request, index) =>
      (most[index] as number) > 0 ? [{ request, most: most[index] as number }] : [],
    );
    const drafted = asks.length === 0 ? [] : await this.#guard(() => this.#source.propose(asks), []);
    // A source that gives more than there is room for is no reason to run rows without a page.
    const byRequest = new Map(
      asks.map(({ request, most: room }, index) => [request, (drafted[index] ?? []).slice(0, room)]),
    );
    return requests.map((request) => ({ request, drafts: byRequest.get(request) ?? [] }));
  }

  /** A run of the model, which the drafter sees before it counts as done. @param timelines by sequence */
  async watch(ran: Promise<Float32Array>, step: Step, timelines: readonly Timeline[]): Promise<Float32Array> {
    const logits = await ran;
    await this.#guard(async () => this.#source.ran?.(step, timelines), undefined);
    return logits;
  }

  /** A turn has come; see {@link SpeculationStats.add}. */
  count(turn: { readonly drafts: number; readonly accepted: number; readonly tokens: number }): void {
    this.#stats.add(turn);
  }

  /** A step of so many requests has come. */
  record(requests: number, step: StepRecord): void {
    this.#latest = this.#gate(requests);
    this.#latest.record(step);
  }

  snapshot({ reset }: { readonly reset: boolean }): SpeculationSnapshot {
    const snapshot = this.#stats.snapshot({
      tokensPerSecond: given(this.#latest.rates),
      drafting: !this.#failed && (!this.#gated || this.#latest.drafts),
    });
    if (reset) this.#stats.reset();
    return snapshot;
  }

  async dispose(): Promise<void> {
    await this.#source.dispose?.();
  }

  #gate(requests: number): ThroughputGate {
    const size = Math.floor(Math.log2(requests));
    let gate = this.#gates.get(size);
    if (gate === undefined) {
      gate = new ThroughputGate();
      this.#gates.set(size, gate);
    }
    return gate;
  }

  async #guard<Result>(act: () => Promise<Result>, otherwise: Result): Promise<Result> {
    if (this.#failed) return otherwise;
    try {
      return await act();
    } catch (error) {
      // The model itself is on that device.
      if (error instanceof DeviceLostError) throw error;
      this.#failed = true;
      const { code, message } = recordError(error);
      const told = `tokens are drafted no more, which makes answers slower and changes nothing else: ${message}`;
      this.#onFault?.(new ConclaveError(code, told, { cause: error }));
      return otherwise;
    }
  }
}

function given({ drafting, plain }: GateRates): Partial<GateRates> {
  return { ...(drafting === undefined ? {} : { drafting }), ...(plain === undefined ? {} : { plain }) };
}
