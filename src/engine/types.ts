/** The shapes of the public API: what `load` takes, what a session takes and yields. No behaviour. */

import type { Plan, PlanOptions } from '../plan/plan.ts';

export interface ChatMessage {
  readonly role: string;
  readonly content: string;
  readonly [key: string]: unknown;
}

export interface LoadOptions extends PlanOptions {
  onProgress?(progress: { readonly bytesDone: number; readonly bytesTotal: number }): void;
  readonly signal?: AbortSignal;
}

/** How the next token is drawn. Absent values come from the file where it has them, else from the defaults named here. */
export interface SamplingOptions {
  /** 0: greedy. Default 0.8. */
  readonly temperature?: number;
  /** 0: off. Default 40. */
  readonly topK?: number;
  /** 1: off. Default 0.95. */
  readonly topP?: number;
  /** 0: off. Default 0.05. */
  readonly minP?: number;
  /** Divides (or multiplies) the logit of each token seen in the last `penaltyWindow`; 1: off, the default. */
  readonly repeatPenalty?: number;
  /** Subtracted from the logit of each token generated before; 0: off. */
  readonly presencePenalty?: number;
  /** Subtracted once for each time the token was generated before; 0: off. */
  readonly frequencyPenalty?: number;
  /** Tokens that `repeatPenalty` looks back on, prompt included; default 64. */
  readonly penaltyWindow?: number;
  /** Added to logits, by token id. */
  readonly logitBias?: Readonly<Record<number, number>>;
  /** A whole number, 0 … 2^53 − 1; default: drawn at random and reported. */
  readonly seed?: number;
}

export interface GenerateOptions extends SamplingOptions {
  /** Most tokens to generate; default: until the end or a full context. */
  readonly maxTokens?: number;
  /** Generation ends before any of these appears in the text; none of them is ever emitted, not even in part. */
  readonly stop?: readonly string[];
  /** An end-of-generation token is kept like any other and ends nothing; for benchmarks. Default false. */
  readonly ignoreEos?: boolean;
  /**
   * What of the cache may serve the new prompt: everything that fits (`all`, the default), or only rows that were
   * computed as rows of a prompt (`prompt`), so that the answer is bit for bit the one of a fresh session.
   */
  readonly reuse?: 'all' | 'prompt';
  readonly signal?: AbortSignal;
  /** Passed to the chat template: `{ enable_thinking: false }`. */
  readonly chatTemplateKwargs?: Readonly<Record<string, unknown>>;
}

/** What a prompt may be: messages for the chat template, text as it is (special tokens parsed), or token ids. */
export type Prompt = readonly ChatMessage[] | { readonly text: string } | { readonly tokens: readonly number[] };

/** `stop`: an end-of-generation token or a stop string. `length`: `maxTokens`, or prompt and answer fill the context. */
export type FinishReason = 'stop' | 'length';

export interface Usage {
  readonly promptTokens: number;
  /** Of these, taken from the cache. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
  readonly prefillMs: number;
  readonly decodeMs: number;
  readonly prefillTokensPerSecond: number;
  readonly decodeTokensPerSecond: number;
  readonly seed: number;
}

/**
 * What `generate` yields: pieces of text as they come (never half a character), then one `finish`. `finish.text` is the
 * whole answer, `finish.tokens` every token generated, an end-of-generation token at the end included (it has no text).
 */
export type Part =
  | { readonly type: 'text'; readonly text: string; readonly tokens: readonly number[] }
  | {
      readonly type: 'finish';
      readonly reason: FinishReason;
      readonly text: string;
      readonly tokens: readonly number[];
      readonly usage: Usage;
    };

/** One timeline over a model. One `generate` at a time; several sessions of a model may run at once. */
export interface Session extends AsyncDisposable {
  /**
   * Generates after `prompt`, reusing what the session's cache already holds of it.
   * @throws UsageError `usage` for a bad option or a prompt that fills the context; TemplateError `template`;
   * NonFiniteError `non_finite`; DisposedError `disposed`; `signal.reason` when aborted.
   */
  generate(prompt: Prompt, options?: GenerateOptions): AsyncIterableIterator<Part>;
  /** Tokens whose keys and values the cache holds. */
  readonly tokens: readonly number[];
  dispose(): Promise<void>;
}

export interface ModelInfo {
  readonly name: string;
  readonly architecture: string;
  readonly parameters: number;
  readonly context: number;
  readonly vocabulary: number;
}

/** A plan that prints itself; `JSON.stringify` gives the plan alone. */
export type PrintablePlan = Plan & { explain(): string };

export interface Model extends AsyncDisposable {
  readonly info: ModelInfo;
  readonly plan: PrintablePlan;
  /** Ids of `text`; with `special` the text of special tokens becomes those tokens. */
  tokenize(text: string, options?: { readonly special?: boolean; readonly addBos?: boolean }): number[];
  detokenize(tokens: readonly number[], options?: { readonly special?: boolean }): string;
  /** The chat template's text for messages. @throws TemplateError `template`. */
  applyTemplate(
    messages: readonly ChatMessage[],
    options?: { readonly kwargs?: Readonly<Record<string, unknown>>; readonly addGenerationPrompt?: boolean },
  ): Promise<string>;
  session(): Session;
  /** [tokens, vocabulary] logits of a prompt, all at once; for tests and perplexity. */
  logits(tokens: readonly number[]): Promise<Float32Array>;
  dispose(): Promise<void>;
}
