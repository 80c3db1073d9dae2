/**
 * Drives many requests through one executable, a run at a time: a chunk of one prompt, or one row of every request that
 * is generating. A single session is a scheduler with one. What a row yields never depends on its neighbours.
 */

import type { Executable } from '../backend/backend.ts';
import { InternalError, NonFiniteError } from '../errors.ts';
import type { Timeline } from './kv-cache.ts';
import type { Sampler } from './sampler.ts';
import type { FinishReason } from './types.ts';

export interface SchedulerOptions {
  readonly executable: Pick<Executable, 'run'>;
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

/** What is asked for: the rows to append to a timeline, and how to go on after them. */
export interface RequestOptions {
  readonly id: number;
  readonly timeline: Timeline;
  /** [rows] The prompt's tokens that the timeline does not hold; at least one. */
  readonly prompt: Int32Array;
  readonly sampler: Sampler;
  readonly maxTokens: number;
  /** Tokens that end the answer. */
  readonly endTokens: ReadonlySet<number>;
}

/** A request in work. */
export class Request {
  readonly id: number;
  readonly timeline: Timeline;
  readonly prompt: Int32Array;
  readonly sampler: Sampler;
  readonly maxTokens: number;
  readonly endTokens: ReadonlySet<number>;
  /** Rows of its whole prompt that the timeline held when it came. */
  readonly reusedRows: number;
  /** Prompt rows done. */
  promptDone = 0;
  /** Tokens generated; the last one, `pending`, is not in the timeline yet. */
  generated = 0;
  pending = -1;
  /** Times in milliseconds; 0 until then. */
  startedAt = 0;
  firstTokenAt = 0;
  lastTokenAt = 0;

  constructor(options: RequestOptions) {
    this.id = options.id;
    this.timeline = options.timeline;
    this.reusedRows = options.timeline.length;
    this.prompt = options.prompt;
    this.sampler = options.sampler;
    this.maxTokens = options.maxTokens;
    this.endTokens = options.endTokens;
  }
}

const sequenceZero = new Int32Array(512);
const noRows = new Int32Array(0);

export class Scheduler {
  readonly #options: SchedulerOptions;
  /** Requests whose prompt is not read yet, in order of arrival. */
  readonly #prompts: Request[] = [];
  /** Requests that generate; those at the front go first. */
  #running: Request[] = [];
  #lastWasPrompt = false;

  readonly #tokens: Int32Array;
  readonly #positions: Int32Array;
  /** 0, 1, 2 …: each row of a step has a sequence of its own, and all are wanted. */
  readonly #counting: Int32Array;

  constructor(options: SchedulerOptions) {
    this.#options = options;
    this.#tokens = new Int32Array(options.stepRows);
    this.#positions = new Int32Array(options.stepRows);
    this.#counting = Int32Array.from({ length: options.stepRows }, (_, i) => i);
  }

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
    const rows = request.prompt.length;
    if (rows === 0 || request.timeline.length + rows >= this.#options.context) {
      throw new InternalError(
        `a prompt of ${rows} rows after ${request.timeline.length} was scheduled in a context of ${this.#options.context}`,
      );
    }
    this.#prompts.push(request);
  }

  /** Takes a request out, between runs. Undefined when it is not here (any more). */
  remove(id: number): Request | undefined {
    const waiting = this.#prompts.findIndex((request) => request.id === id);
    if (waiting !== -1) return this.#prompts.splice(waiting, 1)[0];
    const running = this.#running.findIndex((request) => request.id === id);
    return running === -1 ? undefined : this.#running.splice(running, 1)[0];
  }

  /** One run; prompts and steps take turns, so that a long prompt does not hold up those who generate. */
  async turn(): Promise<void> {
    const [prompt] = this.#prompts;
    if (prompt !== undefined && (this.#running.length === 0 || !this.#lastWasPrompt)) {
      this.#lastWasPrompt = true;
      await this.#readPrompt(prompt);
    } else if (this.#running.length > 0) {
      this.#lastWasPrompt = false;
      const rows = this.#running.slice(0, this.#options.stepRows);
      // Those who had their turn go to the back.
      if (this.#running.length > rows.length) this.#running = [...this.#running.slice(rows.length), ...rows];
      await this.#step(rows);
    }
  }

  /** Runs the next chunk of a prompt, and draws the first token after the last one. */
  async #readPrompt(request: Request): Promise<void> {
    const { executable, promptRows, now } = this.#options;
    const { timeline, prompt, promptDone } = request;
    if (request.startedAt === 0) request.startedAt = now();
    const rows = Math.min(promptRows, prompt.length - promptDone);
    const last = promptDone + rows === prompt.length;
    const first = timeline.length;
    let logits: Float32Array;
    try {
      timeline.reserve(rows);
      logits = await executable.run({
        mode: 'prompt',
        tokens: prompt.subarray(promptDone, promptDone + rows),
        positions: Int32Array.from({ length: rows }, (_, row) => first + row),
        sequences: rows <= sequenceZero.length ? sequenceZero.subarray(0, rows) : new Int32Array(rows),
        pageTables: [timeline.pageTable],
        wanted: last && request.maxTokens > 0 ? Int32Array.of(rows - 1) : noRows,
      });
    } catch (error) {
      this.#fail(request, locate(error, `step 0, prompt positions ${first} to ${first + rows - 1}`));
      return;
    }
    timeline.advance(rows, 'prompt');
    request.promptDone += rows;
    if (!last) return;
    this.#prompts.splice(this.#prompts.indexOf(request), 1);
    if (request.maxTokens === 0) {
      request.firstTokenAt = request.lastTokenAt = now();
      this.#options.onFinish(request, 'length');
      return;
    }
    this.#running.push(request);
    this.#draw(request, logits);
  }

  /** Runs one row of each request and draws a token of each. */
  async #step(candidates: readonly Request[]): Promise<void> {
    const requests = candidates.filter((request) => this.#reserveRow(request));
    const count = requests.length;
    if (count === 0) return;
    const pageTables: Int32Array[] = [];
    for (let row = 0; row < count; row++) {
      const request = requests[row]!;
      this.#tokens[row] = request.pending;
      this.#positions[row] = request.timeline.length;
      pageTables.push(request.timeline.pageTable);
    }
    const counting = this.#counting.subarray(0, count);
    let logits: Float32Array;
    try {
      logits = await this.#options.executable.run({
        mode: 'step',
        tokens: this.#tokens.subarray(0, count),
        positions: this.#positions.subarray(0, count),
        sequences: counting,
        pageTables,
        wanted: counting,
      });
    } catch (error) {
      // Whose row it was cannot be told; alone each row gives what it gave here, so one by one only its owner fails.
      if (count > 1 && error instanceof NonFiniteError) {
        for (const request of requests) await this.#step([request]);
        return;
      }
      for (const request of requests) {
        this.#fail(request, locate(error, `step ${request.generated}, position ${request.timeline.length}`));
      }
      return;
    }
    const { vocabulary } = this.#options;
    for (let row = 0; row < count; row++) {
      const request = requests[row]!;
      request.timeline.advance(1, 'step');
      this.#draw(request, count === 1 ? logits : logits.subarray(row * vocabulary, (row + 1) * vocabulary));
    }
  }

  #reserveRow(request: Request): boolean {
    try {
      request.timeline.reserve(1);
      return true;
    } catch (error) {
      this.#fail(request, error);
      return false;
    }
  }

  /** Draws a request's next token from its row of logits, and ends the request where that ends it. */
  #draw(request: Request, logits: Float32Array): void {
    let token: number;
    try {
      token = request.sampler.sample(logits, request.generated);
    } catch (error) {
      this.#fail(
        request,
        locate(error, `step ${request.generated}, the logits of position ${request.timeline.length - 1}`),
      );
      return;
    }
    request.sampler.observe(token);
    request.pending = token;
    request.generated++;
    request.lastTokenAt = this.#options.now();
    if (request.generated === 1) request.firstTokenAt = request.lastTokenAt;
    this.#options.onToken(request, token);
    // The pending token counts as one that the context holds, although it is not run.
    const full = request.timeline.length + 1 >= this.#options.context;
    if (request.endTokens.has(token)) this.#finish(request, 'stop');
    else if (request.generated >= request.maxTokens || full) this.#finish(request, 'length');
  }

  #finish(request: Request, reason: FinishReason): void {
    this.remove(request.id);
    this.#options.onFinish(request, reason);
  }

  #fail(request: Request, error: unknown): void {
    this.remove(request.id);
    this.#options.onError(request, error);
  }
}

/** A NonFiniteError that says at which step, too. */
function locate(error: unknown, step: string): unknown {
  if (!(error instanceof NonFiniteError)) return error;
  return new NonFiniteError(`${step}: ${error.message}`, { data: { ...error.data, step }, cause: error });
}
