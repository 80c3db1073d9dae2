/**
 * Drives many requests through one executable: a run is a chunk of one prompt, or one row of every request that is
 * generating. A single session is a scheduler with one. What a row yields never depends on its neighbours. Where tokens are drafted
 * (`speculate/`), a request has a row for each draft besides, and what is drawn from it counts if the draft came true.
 *
 * Where the device draws tokens, runs are sent before the tokens of those before them have come (`flights.ts`). A request
 * then counts what it sent; ends are seen when tokens come, and what was sent beyond them is dropped. Nobody else waits for
 * that: the device takes runs in order, so pages and slots may go to others while runs that use them are on their way.
 */

import { type Drawn, drawnIn, type Executable, type Step } from '../backend/backend.ts';
import { InternalError, NonFiniteError } from '../errors.ts';
import { DrawSlots } from './draw-slots.ts';
import type { Timeline } from './kv-cache.ts';
import type { Request } from './request.ts';
import { type Landed, Runs } from './runs.ts';
import type { Speculator } from './speculate/speculator.ts';
import { acceptDrafts, type Turn, verifyStep } from './speculate/verify.ts';
import type { FinishReason } from './types.ts';

export interface SchedulerOptions {
  readonly executable: Pick<Executable, 'run' | 'drawer'>;
  /** Tokens a timeline may hold. */
  readonly context: number;
  /** Most rows of a run that reads a prompt. */
  readonly promptRows: number;
  /** Most rows of a step run, each with its logits. */
  readonly stepRows: number;
  readonly vocabulary: number;
  /** Absent: nothing is drafted. */
  readonly speculator?: Speculator | undefined;
  /** In milliseconds. */
  now(): number;
  onToken(request: Request, token: number): void;
  onFinish(request: Request, reason: FinishReason): void;
  onError(request: Request, error: unknown): void;
}

const noRows = new Int32Array(0);

export class Scheduler {
  readonly #options: SchedulerOptions;
  /** Requests whose prompt is not sent yet, in order of arrival. */
  readonly #prompts: Request[] = [];
  /** Requests that generate; those at the front go first. */
  #running: Request[] = [];
  readonly #slots: DrawSlots;
  readonly #runs: Runs;
  /** Which of `#kinds` was sent last. */
  #last = 0;
  readonly #kinds: readonly (() => boolean)[];
  /** Nothing is sent until all that is on its way has come: that may give pages back. */
  #short = false;

  constructor(options: SchedulerOptions) {
    this.#options = options;
    const { drawer } = options.executable;
    this.#slots = new DrawSlots(drawer);
    this.#runs = new Runs(options);
    this.#kinds = [() => this.#sendSteps('host'), () => this.#sendChunk(), () => this.#sendSteps('device')];
  }

  /** Whether somebody waits for something; runs may be on their way that nobody needs any more. */
  get busy(): boolean {
    return this.#prompts.length > 0 || this.#running.length > 0;
  }

  /** Whether a request that is here writes to a timeline. */
  holds(timeline: Timeline): boolean {
    return [...this.#prompts, ...this.#running].some((request) => request.timeline === timeline);
  }

  /** Whether a chunk of a prompt is to be read. */
  get promptsWaiting(): boolean {
    return this.#prompts.length > 0;
  }

  add(request: Request): void {
    const { prompt, timeline } = request;
    if (prompt.length <= timeline.length || prompt.length >= this.#options.context) {
      throw new InternalError(
        `a prompt of ${prompt.length} rows was scheduled, of which ${timeline.length} are there, in a context of ${this.#options.context}`,
      );
    }
    this.#prompts.push(request);
  }

  /** Takes a request out, between turns. Undefined when it is not here (any more). */
  remove(id: number): Request | undefined {
    const request = [...this.#prompts, ...this.#running].find((each) => each.id === id);
    if (request === undefined) return undefined;
    this.#takeOut(request);
    request.dropRunAhead();
    return request;
  }

  /**
   * Sends a run and, when as many are on their way as may be, hears out the first of them. Prompts and steps take turns, so
   * that a long prompt does not hold up those who generate.
   */
  async turn(): Promise<void> {
    const sent = !this.#runs.full && !this.#short && this.#send();
    if (!sent || this.#runs.full) await this.#runs.land();
    if (this.#runs.count === 0) this.#short = false;
  }

  /** Hears out every run that is on its way: afterwards the executable is idle. */
  settle(): Promise<void> {
    return this.#runs.landAll();
  }

  #send(): boolean {
    const kinds = this.#kinds.length;
    for (let kind = this.#last + 1; kind <= this.#last + kinds; kind++) {
      if (this.#kinds[kind % kinds]?.() === true) {
        this.#last = kind % kinds;
        return true;
      }
    }
    return false;
  }

  /** The next chunk of a prompt; the first token is drawn after the last one. */
  #sendChunk(): boolean {
    const [request] = this.#prompts;
    if (request === undefined) return false;
    const { executable, promptRows, now } = this.#options;
    const { timeline, prompt } = request;
    const first = timeline.length;
    const rows = Math.min(promptRows, prompt.length - first);
    const last = first + rows === prompt.length;
    const draws = last && request.maxTokens > 0;
    const drawnAt = draws ? this.#placeOf(request, this.#draftsFor(this.#running.length + 1)) : undefined;
    const onHost = draws ? drawnAt === 'host' : executable.drawer === undefined || this.#watched;
    if (onHost && this.#runs.readsLogits) return false;
    if (!this.#reserve(request, rows)) return false;
    if (request.startedAt === 0) request.startedAt = now();
    const step: Step = {
      mode: 'prompt',
      tokens: prompt.subarray(first, first + rows),
      positions: Int32Array.from({ length: rows }, (_, row) => first + row),
      sequences: new Int32Array(rows),
      pageTables: [timeline.pageTable],
      wanted: draws ? Int32Array.of(rows - 1) : noRows,
    };
    const failed = (error: unknown) => {
      if (request.ended) return;
      timeline.rewind(first);
      this.#fail(request, locate(error, `step 0, prompt positions ${first} to ${first + rows - 1}`));
    };
    const landed = (given: Landed) => {
      this.#land(given);
      if (!last || draws || request.ended) return;
      request.firstTokenAt = request.lastTokenAt = now();
      this.#finish(request, 'length');
    };
    const turns: readonly Turn[] = draws ? [{ request, drafts: [] }] : [];
    this.#runs.send(onHost, () => this.#runs.run(step, turns, { onHost, timelines: [timeline] }), { failed, landed });
    request.chunkStart = first;
    timeline.advance(rows, 'prompt');
    if (draws) request.drawn++;
    if (last) {
      this.#prompts.splice(this.#prompts.indexOf(request), 1);
      this.#running.push(request);
    }
    return true;
  }

  /** The rows of each request whose tokens are drawn there, of as many as a run takes. */
  #sendSteps(where: 'device' | 'host'): boolean {
    const onHost = where === 'host';
    if (onHost && this.#runs.readsLogits) return false;
    const { stepRows, context } = this.#options;
    const count = Math.min(this.#running.length, stepRows);
    const drafting = this.#draftsFor(count);
    const ready = this.#running.filter((request) => {
      if (request.drawn >= request.maxTokens || request.prompt.length + request.drawn >= context) return false;
      // On the device the next token may follow from one that has not come.
      if (request.slot === undefined && request.drawn > request.generated) return false;
      return this.#placeOf(request, drafting) === where;
    });
    const turn = ready.slice(0, stepRows);
    const requests = turn.filter((request) => this.#reserve(request, 1));
    if (this.#short || requests.length === 0) return false;
    // Those who had their turn go to the back.
    if (ready.length > turn.length) {
      this.#running = [...this.#running.filter((request) => !requests.includes(request)), ...requests];
    }
    this.#sendRows(requests, { onHost, drafting, count });
    return true;
  }

  /** Whether a step of so many requests drafts tokens. */
  #draftsFor(requests: number): boolean {
    return this.#options.speculator?.draftsFor(requests) ?? false;
  }

  /** Whether all runs give the host what drafts are made from. */
  get #watched(): boolean {
    return this.#options.speculator?.watches === true;
  }

  /** Where a request's next token is drawn; undefined: nowhere before those on their way have come. */
  #placeOf(request: Request, drafting: boolean): 'device' | 'host' | undefined {
    if (!drafting && !this.#watched) return this.#slots.take(request) ? 'device' : 'host';
    // The host checks drafts, and goes on from what the device has drawn.
    if (request.slot !== undefined && request.drawn > request.generated) return undefined;
    this.#slots.release(request);
    return 'host';
  }

  /**
   * A row of each request, for which a page is reserved, and where tokens are drafted rows of these.
   * @param count as it is told to {@link Speculator.record}
   */
  #sendRows(
    requests: readonly Request[],
    { onHost, drafting, count }: { readonly onHost: boolean; readonly drafting: boolean; readonly count: number },
  ): void {
    const { stepRows, context, speculator } = this.#options;
    let turns: readonly Turn[] = requests.map((request) => ({ request, drafts: [] }));
    const run = () => {
      const timelines = turns.map(({ request }) => request.timeline);
      const ran = this.#runs.run(verifyStep(turns, onHost ? lastToken : nextToken), turns, { onHost, timelines });
      for (const { request, drafts } of turns) request.timeline.advance(1 + drafts.length, 'step');
      return ran;
    };
    const drafted = async (by: Speculator): Promise<Landed> => {
      const made = await by.draft(requests, { rows: stepRows, context });
      turns = made.filter(({ request }) => !request.ended);
      return turns.length === 0 ? { turns } : run();
    };
    let tokens = 0;
    this.#runs.send(onHost, () => (drafting && speculator !== undefined ? drafted(speculator) : run()), {
      failed: (error) => this.#stepFailed(turns, error, onHost),
      landed: (given) => {
        tokens = this.#land(given);
      },
      done: (elapsedMs) => speculator?.record(count, { drafted: drafting, tokens, elapsedMs }),
    });
    for (const request of requests) request.drawn++;
  }

  /** @returns how many tokens came */
  #land({ turns, logits, drawn }: Landed): number {
    const generated = () => turns.reduce((sum, { request }) => sum + request.generated, 0);
    const before = generated();
    if (drawn !== undefined) this.#landDrawn(turns, drawn);
    if (logits !== undefined) this.#landLogits(turns, logits);
    return generated() - before;
  }

  #landDrawn(turns: readonly Turn[], drawn: Drawn): void {
    for (const [row, { request }] of turns.entries()) {
      if (request.ended) continue;
      const token = drawn[row];
      if (request.slot !== undefined && typeof token === 'number') this.#take(request, token);
      else this.#refuse(request);
    }
  }

  #landLogits(turns: readonly Turn[], logits: Float32Array): void {
    const { vocabulary, speculator } = this.#options;
    let next = 0;
    for (const { request, drafts } of turns) {
      const first = next;
      next += 1 + drafts.length;
      if (request.ended) continue;
      const before = request.generated;
      const accepted = acceptDrafts(drafts, (row) => {
        const at = (first + row) * vocabulary;
        return this.#drawFrom(request, logits.length === vocabulary ? logits : logits.subarray(at, at + vocabulary));
      });
      speculator?.count({ drafts: drafts.length, accepted, tokens: request.generated - before });
      if (request.ended) continue;
      request.drawn = request.generated;
      request.dropRunAhead();
    }
  }

  /** A request's next token, from its row's logits; undefined where it has ended. */
  #drawFrom(request: Request, logits: Float32Array): number | undefined {
    if (request.ended) return undefined;
    const { sampler, generated, prompt, timeline } = request;
    let token: number;
    try {
      token = sampler.sample(logits, generated);
    } catch (error) {
      const row = prompt.length + generated - 1;
      timeline.rewind(row + 1);
      this.#fail(request, locate(error, `step ${generated}, the logits of position ${row}`));
      return undefined;
    }
    this.#take(request, token);
    return token;
  }

  /** A token that the device did not draw, or one after it: its run counts as not sent, and then the host draws it. */
  #refuse(request: Request): void {
    const { timeline } = request;
    request.refused = true;
    this.#slots.release(request);
    request.drawn--;
    timeline.rewind(timeline.length - 1);
    if (request.drawn > 0) return;
    // It was the first token, and its row one of the prompt.
    timeline.rewind(request.chunkStart);
    this.#running.splice(this.#running.indexOf(request), 1);
    this.#prompts.unshift(request);
  }

  async #stepFailed(turns: readonly Turn[], error: unknown, onHost: boolean): Promise<void> {
    // Whose row it was cannot be told, and it may have been a draft's; alone each row gives what it gave here, so one by one only
    // its owner fails.
    const several = turns.length > 1 || turns.some(({ drafts }) => drafts.length > 0);
    const oneByOne = onHost && several && error instanceof NonFiniteError;
    for (const { request } of turns) {
      if (request.ended) continue;
      request.drawn = request.generated;
      request.dropRunAhead();
      if (oneByOne) {
        if (!this.#reserve(request, 1)) continue;
        this.#sendRows([request], { onHost, drafting: false, count: 1 });
        await this.#runs.landAll();
      } else {
        this.#fail(request, locate(error, `step ${request.generated}, position ${request.timeline.length}`));
      }
    }
  }

  /** Pages for more rows; without them the request fails, unless what is on its way may give some back. */
  #reserve(request: Request, rows: number): boolean {
    try {
      request.timeline.reserve(rows);
      return true;
    } catch (error) {
      if (this.#runs.count > 0) this.#short = true;
      else this.#fail(request, error);
      return false;
    }
  }

  /** A request's next token has come; where it ends the request, what was sent after it is dropped. */
  #take(request: Request, token: number): void {
    request.sampler.observe(token);
    request.answer.push(token);
    request.lastTokenAt = this.#options.now();
    if (request.generated === 1) request.firstTokenAt = request.lastTokenAt;
    this.#options.onToken(request, token);
    // The last token counts as one that the context holds, although it is not run.
    const full = request.prompt.length + request.generated >= this.#options.context;
    if (request.endTokens.has(token)) this.#finish(request, 'stop');
    else if (request.generated >= request.maxTokens || full) this.#finish(request, 'length');
  }

  #finish(request: Request, reason: FinishReason): void {
    this.#takeOut(request);
    request.dropRunAhead();
    this.#options.onFinish(request, reason);
  }

  #fail(request: Request, error: unknown): void {
    this.#takeOut(request);
    this.#options.onError(request, error);
  }

  #takeOut(request: Request): void {
    request.ended = true;
    this.#slots.release(request);
    for (const list of [this.#prompts, this.#running]) {
      const at = list.indexOf(request);
      if (at >= 0) list.splice(at, 1);
    }
  }
}

function lastToken({ answer }: Request): number {
  return answer.at(-1) as number;
}

/** What a row of a step on the device is of: the last token, by its slot where the host does not know it yet. */
function nextToken(request: Request): number {
  return request.drawn > request.generated ? drawnIn(request.slot as number) : lastToken(request);
}

/** A NonFiniteError that says at which step, too. */
function locate(error: unknown, step: string): unknown {
  if (!(error instanceof NonFiniteError)) return error;
  return new NonFiniteError(`${step}: ${error.message}`, { data: { ...error.data, step }, cause: error });
}
