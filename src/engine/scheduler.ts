/**
 * Drives many requests through one executable: a run is a chunk of one prompt, or one row of every request that is
 * generating. A single session is a scheduler with one. What a row yields never depends on its neighbours.
 *
 * Where the device draws tokens, runs are sent before the tokens of those before them have come (`flights.ts`). A request
 * then counts what it sent; ends are seen when tokens come, and what was sent beyond them is dropped. Nobody else waits for
 * that: the device takes runs in order, so pages and slots may go to others while runs that use them are on their way.
 */

import { type Drawer, type Drawn, drawnIn, type Executable, RUNS_AHEAD, type Step } from '../backend/backend.ts';
import { InternalError, NonFiniteError } from '../errors.ts';
import { DrawSlots } from './draw-slots.ts';
import { Flights, type Outcome } from './flights.ts';
import type { Timeline } from './kv-cache.ts';
import type { Request } from './request.ts';
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
  readonly #flights: Flights;
  /** Which of `#kinds` was sent last. */
  #last = 0;
  readonly #kinds: readonly (() => boolean)[];
  /** Whether a run is on its way whose logits the host reads: they are valid until the next one. */
  #readsLogits = false;
  /** Nothing is sent until all that is on its way has come: that may give pages back. */
  #short = false;
  /** 0, 1, 2 …: each row of a step has a sequence of its own, and all are wanted. */
  readonly #counting: Int32Array;

  constructor(options: SchedulerOptions) {
    this.#options = options;
    const { drawer } = options.executable;
    this.#slots = new DrawSlots(drawer);
    this.#flights = new Flights(drawer === undefined ? 1 : RUNS_AHEAD);
    this.#kinds = [() => this.#sendSteps('host'), () => this.#sendChunk(), () => this.#sendSteps('device')];
    this.#counting = Int32Array.from({ length: options.stepRows }, (_, i) => i);
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
    const sent = !this.#flights.full && !this.#short && this.#send();
    if (!sent || this.#flights.full) await this.#flights.land();
    if (this.#flights.count === 0) this.#short = false;
  }

  /** Hears out every run that is on its way: afterwards the executable is idle. */
  settle(): Promise<void> {
    return this.#flights.landAll();
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
    const onHost = draws ? !this.#slots.take(request) : executable.drawer === undefined;
    if (onHost && this.#readsLogits) return false;
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
    const read = () => {
      if (!last || draws || request.ended) return;
      request.firstTokenAt = request.lastTokenAt = now();
      this.#finish(request, 'length');
    };
    this.#dispatch(step, { requests: draws ? [request] : [], onHost, failed, read });
    request.chunkStart = first;
    timeline.advance(rows, 'prompt');
    if (draws) request.drawn++;
    if (last) {
      this.#prompts.splice(this.#prompts.indexOf(request), 1);
      this.#running.push(request);
    }
    return true;
  }

  /** One row of each request whose tokens are drawn there, as many as a run takes. */
  #sendSteps(where: 'device' | 'host'): boolean {
    const onHost = where === 'host';
    if (onHost && this.#readsLogits) return false;
    const { stepRows, context } = this.#options;
    const ready = this.#running.filter((request) => {
      if (request.drawn >= request.maxTokens || request.prompt.length + request.drawn >= context) return false;
      // On the device the next token may follow from one that has not come.
      if (request.slot === undefined && request.drawn > request.generated) return false;
      return this.#slots.take(request) !== onHost;
    });
    const turn = ready.slice(0, stepRows);
    const requests = turn.filter((request) => this.#reserve(request, 1));
    if (this.#short || requests.length === 0) return false;
    // Those who had their turn go to the back.
    if (ready.length > turn.length) {
      this.#running = [...this.#running.filter((request) => !requests.includes(request)), ...requests];
    }
    this.#sendRows(requests, onHost);
    return true;
  }

  /** A row of each; their pages are reserved. */
  #sendRows(requests: readonly Request[], onHost: boolean): void {
    const count = requests.length;
    const counting = this.#counting.subarray(0, count);
    const step: Step = {
      mode: 'step',
      tokens: Int32Array.from(requests, nextToken),
      positions: Int32Array.from(requests, ({ timeline }) => timeline.length),
      sequences: counting,
      pageTables: requests.map(({ timeline }) => timeline.pageTable),
      wanted: counting,
    };
    const failed = (error: unknown) => this.#stepFailed(requests, error, onHost);
    this.#dispatch(step, { requests, onHost, failed });
    for (const request of requests) {
      request.timeline.advance(1, 'step');
      request.drawn++;
    }
  }

  /** Sends a run to where its tokens are drawn. */
  #dispatch(
    step: Step,
    run: {
      /** By wanted row. */
      readonly requests: readonly Request[];
      readonly onHost: boolean;
      readonly failed: (error: unknown) => void | Promise<void>;
      /** The run has come, before its tokens are looked at. */
      readonly read?: () => void;
    },
  ): void {
    const { executable } = this.#options;
    const { requests, onHost, failed, read } = run;
    const send = <T>(sent: Promise<T>, land: (value: T) => void) =>
      this.#flights.send(sent, (outcome: Outcome<T>) => {
        if (onHost) this.#readsLogits = false;
        if ('error' in outcome) return failed(outcome.error);
        read?.();
        land(outcome.value);
      });
    if (onHost) {
      this.#readsLogits = true;
      send(executable.run(step), (logits) => this.#landLogits(requests, logits));
    } else {
      const draws = requests.map(({ settings, slot, prompt, drawn }) => ({
        settings,
        slot: slot as number,
        prompt: prompt.length,
        index: drawn,
      }));
      send((executable.drawer as Drawer).draw(step, draws), (drawn) => this.#landDrawn(requests, drawn));
    }
  }

  #landDrawn(requests: readonly Request[], drawn: Drawn): void {
    for (const [row, request] of requests.entries()) {
      if (request.ended) continue;
      const token = drawn[row];
      if (request.slot !== undefined && typeof token === 'number') this.#take(request, token);
      else this.#refuse(request);
    }
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

  #landLogits(requests: readonly Request[], logits: Float32Array): void {
    const { vocabulary } = this.#options;
    for (const [row, request] of requests.entries()) {
      if (request.ended) continue;
      let token: number;
      try {
        const own = requests.length === 1 ? logits : logits.subarray(row * vocabulary, (row + 1) * vocabulary);
        token = request.sampler.sample(own, request.generated);
      } catch (error) {
        const at = `step ${request.generated}, the logits of position ${request.timeline.length - 1}`;
        this.#fail(request, locate(error, at));
        continue;
      }
      this.#take(request, token);
    }
  }

  async #stepFailed(requests: readonly Request[], error: unknown, onHost: boolean): Promise<void> {
    // Whose row it was cannot be told; alone each row gives what it gave here, so one by one only its owner fails.
    const oneByOne = onHost && requests.length > 1 && error instanceof NonFiniteError;
    for (const request of requests) {
      if (request.ended) continue;
      request.drawn = request.generated;
      request.dropRunAhead();
      if (oneByOne) {
        if (!this.#reserve(request, 1)) continue;
        this.#sendRows([request], true);
        await this.#flights.landAll();
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
      if (this.#flights.count > 0) this.#short = true;
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

/** What a step's row is of: the last token, by its slot where the host does not know it yet. */
function nextToken({ answer, drawn, slot }: Request): number {
  return drawn > answer.length ? drawnIn(slot as number) : (answer.at(-1) as number);
}

/** A NonFiniteError that says at which step, too. */
function locate(error: unknown, step: string): unknown {
  if (!(error instanceof NonFiniteError)) return error;
  return new NonFiniteError(`${step}: ${error.message}`, { data: { ...error.data, step }, cause: error });
}
