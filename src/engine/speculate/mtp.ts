/**
 * Drafts by the model's own head that predicts further ahead. It is fed every row of a timeline, as soon as the token after the
 * row is known: from what the model's runs give of their rows, which is kept here until then. A row that was fed, and behind which a
 * timeline is rewound, keeps what it made of the token that came after it then: what is drafted may be a little worse for it, and
 * nothing else is.
 */

import type { MtpRunner, Step } from '../../backend/backend.ts';
import type { Timeline } from '../kv-cache.ts';
import type { Request } from '../request.ts';
import { type DraftAsk, type DraftRows, type DraftSource, draftChain, inRuns, stepOver } from './source.ts';

/** Rows that a timeline may have waiting; more are fed together as rows of a prompt, which read the weights once for all. */
const MOST_WAITING = 32;

export interface MtpDraftsOptions {
  readonly runner: MtpRunner;
  readonly vocabulary: number;
  /** Most rows of a run, and most rows with logits. */
  readonly stepRows: number;
  readonly promptRows: number;
}

export class MtpDrafts implements DraftSource {
  readonly #options: MtpDraftsOptions;
  /** Timelines outlive requests: what a session's last row gave serves its next prompt. */
  readonly #waiting = new WeakMap<Timeline, WaitingRows>();

  constructor(options: MtpDraftsOptions) {
    this.#options = options;
  }

  async ran(step: Step, timelines: readonly Timeline[]): Promise<void> {
    const given = this.#options.runner.given();
    const width = given.length / step.tokens.length;
    const touched = new Set<Timeline>();
    for (let row = 0; row < step.tokens.length; row++) {
      const timeline = timelines[step.sequences[row] as number] as Timeline;
      const waiting = this.#rowsOf(timeline, width);
      waiting.add(
        step.positions[row] as number,
        step.tokens[row] as number,
        given.subarray(row * width, (row + 1) * width),
      );
      touched.add(timeline);
    }
    for (const timeline of touched) {
      const waiting = this.#rowsOf(timeline, width);
      // Of a long prompt most are fed at once; the token after the last one is not known.
      if (waiting.count > MOST_WAITING) await this.#feed(waiting, timeline, waiting.count - 1);
    }
  }

  async propose(asks: readonly DraftAsk[]): Promise<readonly (readonly number[])[]> {
    const ready = asks.flatMap((ask, index) => {
      const waiting = this.#waiting.get(ask.request.timeline);
      const { length } = ask.request.timeline;
      waiting?.rewind(length);
      // Rows that were never seen, as those drawn on a device, leave nothing to go on from.
      return waiting === undefined || waiting.count === 0 || waiting.end !== length ? [] : [{ ...ask, waiting, index }];
    });
    const drafts: (readonly number[])[] = asks.map(() => []);
    for (const run of inRuns(ready, ({ waiting }) => waiting.count, this.#options.stepRows)) {
      const made = await this.#draft(run);
      for (const [at, { index }] of run.entries()) drafts[index] = made[at] as number[];
    }
    return drafts;
  }

  async #draft(asks: readonly (DraftAsk & { readonly waiting: WaitingRows })[]): Promise<number[][]> {
    const { runner, vocabulary } = this.#options;
    const rows = asks.map(({ request, most, waiting }): DraftRows => {
      const { pageTable } = request.timeline;
      return { pageTable, first: waiting.first, tokens: waiting.next(lastToken(request)), most };
    });
    let hidden = joined(asks.map(({ waiting }) => waiting.rows));
    const { width } = (asks[0] as (typeof asks)[number]).waiting;
    const drafts = await draftChain(rows, vocabulary, async (step, from) => {
      if (from !== undefined) {
        hidden = joined(Array.from(from, (row) => hidden.slice(row * width, (row + 1) * width)));
      }
      const made = await runner.run({ ...step, incoming: hidden });
      hidden = made.hidden;
      return made.logits;
    });
    for (const { waiting } of asks) waiting.drop(waiting.count);
    return drafts;
  }

  /** The first `count` waiting rows, of which the token after each is known: that of the row behind it. */
  async #feed(waiting: WaitingRows, { pageTable }: Timeline, count: number): Promise<void> {
    const { runner, promptRows } = this.#options;
    for (let left = count; left > 0; ) {
      const rows = Math.min(left, promptRows);
      const tokens = waiting.next().subarray(0, rows);
      const step = { ...stepOver('prompt', [{ pageTable, first: waiting.first, tokens }]), wanted: new Int32Array(0) };
      await runner.run({ ...step, incoming: waiting.rows.subarray(0, rows * waiting.width) });
      waiting.drop(rows);
      left -= rows;
    }
  }

  #rowsOf(timeline: Timeline, width: number): WaitingRows {
    let waiting = this.#waiting.get(timeline);
    if (waiting === undefined) {
      waiting = new WaitingRows(width);
      this.#waiting.set(timeline, waiting);
    }
    return waiting;
  }
}

function lastToken({ prompt, answer }: Request): number {
  return answer.at(-1) ?? (prompt.at(-1) as number);
}

function joined(parts: readonly Float32Array[]): Float32Array {
  const [only] = parts;
  if (parts.length === 1 && only !== undefined) return only;
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** Rows of a timeline, side by side, that wait to be fed; all before them have been. */
class WaitingRows {
  readonly width: number;
  /** The first one's position. */
  first = 0;
  count = 0;
  #values = new Float32Array(0);
  #tokens = new Int32Array(0);

  constructor(width: number) {
    this.width = width;
  }

  /** The position behind the last one. */
  get end(): number {
    return this.first + this.count;
  }

  /** [count, width] A view. */
  get rows(): Float32Array {
    return this.#values.subarray(0, this.count * this.width);
  }

  /** [count] The token after each; without the last row's, one fewer. */
  next(last?: number): Int32Array {
    const own = this.#tokens.subarray(1, this.count);
    return last === undefined ? own : Int32Array.of(...own, last);
  }

  /** A row at any position; those that it takes the place of are forgotten, and with a gap before it all are. */
  add(position: number, token: number, values: Float32Array): void {
    this.rewind(position);
    if (this.end !== position) {
      this.first = position;
      this.count = 0;
    }
    const needed = this.count + 1;
    if (needed > this.#tokens.length) this.#resize(Math.max(8, 2 * needed));
    this.#values.set(values, this.count * this.width);
    this.#tokens[this.count] = token;
    this.count = needed;
  }

  /** Forgets rows from a position on. */
  rewind(position: number): void {
    this.count = Math.max(0, Math.min(this.count, position - this.first));
  }

  /** The first `count` have been fed. */
  drop(count: number): void {
    this.#values.copyWithin(0, count * this.width, this.count * this.width);
    this.#tokens.copyWithin(0, count, this.count);
    this.first += count;
    this.count -= count;
    // The rows of a long prompt take much memory, and are gone.
    if (this.#tokens.length > 4 * MOST_WAITING && this.count <= MOST_WAITING) this.#resize(MOST_WAITING);
  }

  #resize(room: number): void {
    const [values, tokens] = [this.rows, this.#tokens.subarray(0, this.count)];
    this.#values = new Float32Array(room * this.width);
    this.#values.set(values);
    this.#tokens = new Int32Array(room);
    this.#tokens.set(tokens);
  }
}
