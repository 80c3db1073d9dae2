/** A session: one timeline over a model. Finds what of the cache serves a prompt, and turns the engine's tokens into parts. */

import { DisposedError, UsageError } from '../errors.ts';
import type { Tokenizer } from '../tokenizer/index.ts';
import { Answer } from './answer.ts';
import type { EngineClient } from './engine-client.ts';
import { checkGenerateOptions, checkPrompt, samplerSettings } from './options.ts';
import type { Timing } from './protocol.ts';
import type { RequestStream } from './request-stream.ts';
import type { FinishReason, GenerateOptions, Part, Prompt, SamplingOptions, Session, Usage } from './types.ts';

/** What a session needs of its model. */
export interface SessionHost {
  readonly engine: EngineClient;
  readonly tokenizer: Tokenizer;
  readonly context: number;
  readonly vocabulary: number;
  readonly sampling: SamplingOptions;
  /** @throws DisposedError `disposed` */
  check(): void;
  promptTokens(prompt: Prompt, kwargs: Readonly<Record<string, unknown>> | undefined): Promise<readonly number[]>;
  onDispose(session: ModelSession): void;
}

const noTokens: ReadonlySet<number> = new Set();

export class ModelSession implements Session {
  readonly #host: SessionHost;
  readonly #id: number;
  /** Tokens whose rows the timeline holds for certain, and how many of them were computed as rows of a prompt. */
  #cached: readonly number[] = [];
  #promptRows = 0;
  #busy = false;
  #running: RequestStream | undefined;
  /** Until an aborted request has left the engine. */
  #settling: Promise<void> = Promise.resolve();
  #disposed = false;

  constructor(host: SessionHost, id: number) {
    this.#host = host;
    this.#id = id;
  }

  get tokens(): readonly number[] {
    return this.#cached;
  }

  async *generate(prompt: Prompt, options: GenerateOptions = {}): AsyncGenerator<Part, undefined, undefined> {
    this.#check();
    checkGenerateOptions(options);
    checkPrompt(prompt, this.#host.vocabulary);
    if (this.#busy) {
      throw new UsageError('this session is generating already; end that first, or use another session of the model');
    }
    this.#busy = true;
    try {
      yield* this.#generate(prompt, options);
    } finally {
      this.#busy = false;
    }
    return undefined;
  }

  /** Ends a generation with DisposedError and frees the session's part of the cache. */
  async dispose(): Promise<void> {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#cached = [];
    const { engine } = this.#host;
    if (this.#running !== undefined) {
      this.#running.fail(new DisposedError('the session', 'make another with model.session()'));
      engine.cancel(this.#running, 0);
      await this.#running.settled;
    }
    await this.#settling;
    engine.close(this.#id);
    this.#host.onDispose(this);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.dispose();
  }

  #check(): void {
    this.#host.check();
    if (this.#disposed) throw new DisposedError('the session', 'make another with model.session()');
  }

  async *#generate(prompt: Prompt, options: GenerateOptions): AsyncGenerator<Part, undefined, undefined> {
    const { engine, tokenizer, context, vocabulary, sampling } = this.#host;
    const { signal, stop = [], maxTokens = Infinity } = options;
    const settings = samplerSettings(options, { file: sampling, vocabulary, context });
    signal?.throwIfAborted();
    const tokens = await abortable(this.#host.promptTokens(prompt, options.chatTemplateKwargs), signal);
    if (tokens.length === 0) throw new UsageError('the prompt is empty: it gives no token');
    if (tokens.length >= context) {
      throw new UsageError(
        `the prompt has ${tokens.length} tokens, but the context holds ${context}, of which one must be left for the answer; ` +
          'shorten the prompt or load the model with a larger context',
        { data: { promptTokens: tokens.length, context } },
      );
    }
    await abortable(this.#settling, signal);
    this.#check();

    const keep = this.#reusable(tokens, options.reuse ?? 'all');
    const endTokens = options.ignoreEos === true ? noTokens : tokenizer.endOfGeneration;
    const stream = engine.generate({
      session: this.#id,
      prompt: Int32Array.from(tokens),
      keep,
      sampler: settings,
      maxTokens,
      endTokens: [...endTokens],
    });
    this.#running = stream;
    // From here on the timeline holds no more than this for certain.
    this.#cached = tokens.slice(0, keep);
    this.#promptRows = Math.min(this.#promptRows, keep);
    // Text goes on where the prompt ended; an answer in a chat begins afresh, so that no space stands before its first word.
    const decoder = tokenizer.stream({ continues: !Array.isArray(prompt) });
    const answer = new Answer({ decoder, stop, endTokens });
    const abort = () => stream.fail(signal?.reason);
    signal?.addEventListener('abort', abort);
    try {
      let reason: FinishReason | undefined;
      let timing: Timing = { reusedRows: keep, prefillMs: 0, decodeMs: 0 };
      while (reason === undefined) {
        const item = await stream.next();
        if (item.type === 'tokens') {
          answer.take(item.batch.tokens);
          timing = item.batch;
          if (answer.stopped) reason = 'stop';
        } else {
          answer.end();
          timing = item;
          // Only this session cancels, and then it reads no further.
          reason = answer.stopped || item.reason === 'cancelled' ? 'stop' : item.reason;
        }
        const part = answer.part();
        if (part !== undefined && reason === undefined) yield part;
        if (reason !== undefined) {
          await this.#release(stream, [...tokens, ...answer.tokens]);
          if (part !== undefined) yield part;
        }
      }
      const usage = makeUsage(
        {
          promptTokens: tokens.length,
          cachedTokens: timing.reusedRows,
          completionTokens: answer.tokens.length,
          seed: settings.seed,
        },
        timing,
      );
      yield { type: 'finish', reason, text: answer.text, tokens: [...answer.tokens], usage };
    } finally {
      signal?.removeEventListener('abort', abort);
      if (this.#running === stream) {
        // Left early: what was handed out counts, the rest never was.
        const released = this.#release(stream, [...tokens, ...answer.tokens.slice(0, answer.handedOut)]);
        this.#settling = released;
        // An abort is answered at once, even if the engine is in the middle of a long chunk.
        if (signal?.aborted !== true) await released;
      }
    }
    return undefined;
  }

  /** How much of the timeline serves the prompt: never all of it, for its last row's logits are needed. */
  #reusable(tokens: readonly number[], reuse: 'all' | 'prompt'): number {
    const most = Math.min(this.#cached.length, tokens.length - 1, reuse === 'prompt' ? this.#promptRows : Infinity);
    let length = 0;
    while (length < most && this.#cached[length] === tokens[length]) length++;
    return length;
  }

  /** Ends the request if it is still in work, and learns what the timeline then holds. */
  async #release(stream: RequestStream, kept: readonly number[]): Promise<void> {
    this.#running = undefined;
    this.#host.engine.cancel(stream, kept.length);
    const outcome = await stream.settled;
    const length = this.#disposed ? 0 : Math.min(outcome.length, kept.length);
    this.#cached = kept.slice(0, length);
    this.#promptRows = Math.min(outcome.promptRows, length);
  }
}

function makeUsage(
  counts: Pick<Usage, 'promptTokens' | 'cachedTokens' | 'completionTokens' | 'seed'>,
  { prefillMs, decodeMs }: Timing,
): Usage {
  const perSecond = (tokens: number, elapsedMs: number) => (elapsedMs > 0 ? (tokens * 1000) / elapsedMs : 0);
  return {
    ...counts,
    prefillMs,
    decodeMs,
    prefillTokensPerSecond: perSecond(counts.promptTokens - counts.cachedTokens, prefillMs),
    // The first token comes out of the prompt; decoding takes the others.
    decodeTokensPerSecond: perSecond(Math.max(0, counts.completionTokens - 1), decodeMs),
  };
}

/** `promise`, or the signal's reason if that comes first. */
async function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  signal.throwIfAborted();
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = () => reject(signal.reason);
  signal.addEventListener('abort', abort);
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}
