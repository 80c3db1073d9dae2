/** The shapes of the public API: what `load` takes, what a session takes and yields. No behaviour. */

// `AsyncDisposable`, for programs whose compiler options do not name it; it stays in the published declarations.
/// <reference lib="esnext.disposable" preserve="true" />

import type { DeviceBandwidth, DeviceMemoryUse, RunProfile } from '../backend/backend.ts';
import type { ConclaveError } from '../errors.ts';
import type { ExpertStatsSnapshot, LayerSnapshot, RunStatsSnapshot } from '../experts/stats.ts';
import type { Plan, PlannedSpeculation, PlanOptions } from '../plan/plan.ts';
import type { GivenTrace } from '../plan/routing.ts';
import type { RoutingBlock } from './routing-recorder.ts';
import type { SpeculationSnapshot } from './speculate/stats.ts';

/** A message as chat templates take it. */
export interface ChatMessage {
  /** `system`, `user`, `assistant`, or what else the file's template knows. */
  readonly role: string;
  /** Never read as special tokens, whatever it says. */
  readonly content: string;
  /** Anything else the template reads: `name`, `tool_calls`, … */
  readonly [key: string]: unknown;
}

export interface LoadOptions extends PlanOptions {
  /** Bytes of weights in place, and all of them; an exception that it throws ends the load. */
  onProgress?(progress: { readonly bytesDone: number; readonly bytesTotal: number }): void;
  /**
   * Something failed that the model goes on without, perhaps long after it was loaded: the model's file, of which only a GPU that
   * does not hold all experts still reads (SourceError `source`). Told once each; an exception that it throws ends the load.
   */
  onFault?(error: ConclaveError): void;
  /** Ends the load, which then throws `signal.reason`. */
  readonly signal?: AbortSignal;
  /**
   * Counts what the model's experts do, for {@link Model.expertStats}; a model of which nothing can be counted is refused. Default:
   * where experts are split between devices, and where tokens are drafted.
   */
  readonly expertStats?: boolean;
  /** That {@link Model.recordRouting} is to come: a model whose routing cannot be recorded is refused before its weights are read. */
  readonly recordRouting?: boolean;
  /**
   * For measurements, where experts are split: which experts rows take, whatever the model would choose. A run's rows take one
   * token after the other, over and over again. What the model says then means nothing.
   */
  readonly routing?: GivenTrace;
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
  /** Divides (or multiplies) the logit of each token seen in the last `penaltyWindow`, 1e-6 … 1e6; 1: off, the default. */
  readonly repeatPenalty?: number;
  /** Subtracted from the logit of each token generated before, −1e6 … 1e6; 0: off. */
  readonly presencePenalty?: number;
  /** Subtracted once for each time the token was generated before, −1e6 … 1e6; 0: off. */
  readonly frequencyPenalty?: number;
  /** Tokens that `repeatPenalty` looks back on, prompt included; −1: the whole context. Default 64. */
  readonly penaltyWindow?: number;
  /** Added to logits, by token id, −1e6 … 1e6; −Infinity bans a token. */
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
  /** Ends the generation, which then throws `signal.reason`; what the cache holds by then stays of use. */
  readonly signal?: AbortSignal;
  /** Passed to the chat template: `{ enable_thinking: false }`. */
  readonly chatTemplateKwargs?: Readonly<Record<string, unknown>>;
}

/** What a prompt may be: messages for the chat template, text as it is (special tokens parsed), or token ids. */
export type Prompt = readonly ChatMessage[] | { readonly text: string } | { readonly tokens: readonly number[] };

/** `stop`: an end-of-generation token or a stop string. `length`: `maxTokens`, or prompt and answer fill the context. */
export type FinishReason = 'stop' | 'length';

/** What a generation took. Times are in milliseconds. */
export interface Usage {
  readonly promptTokens: number;
  /** Of these, taken from the cache. */
  readonly cachedTokens: number;
  /** Tokens generated, an end-of-generation token included. */
  readonly completionTokens: number;
  /** From the start of its first run to the first token. */
  readonly prefillMs: number;
  /** From the first token to the last. */
  readonly decodeMs: number;
  /** Of the prompt tokens that were computed; 0 where nothing was measured. */
  readonly prefillTokensPerSecond: number;
  /** Of the tokens after the first, which comes out of the prompt; 0 where nothing was measured. */
  readonly decodeTokensPerSecond: number;
  /** What the draws began from: given as an option, it gives the same answer again. */
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
   * Nothing starts before the first part is asked for, and leaving the loop ends it.
   * @throws UsageError `usage` for a bad option, a prompt that fills the context, or while another generation of this
   * session runs; TemplateError `template`; NonFiniteError `non_finite`; DisposedError `disposed`; `signal.reason` when
   * aborted. They come out of the loop, not out of this call.
   */
  generate(prompt: Prompt, options?: GenerateOptions): AsyncIterableIterator<Part>;
  /** Tokens whose keys and values the cache holds. */
  readonly tokens: readonly number[];
  /** Ends what it generates and gives its cache back. Twice is once. */
  dispose(): Promise<void>;
}

/** Where the time of computing some rows goes; see {@link Model.profile}. Times are medians. */
export interface Profile extends RunProfile {
  /** How fast the device reads its memory, as measured: the bound of decoding. Absent where there was no room to measure. */
  readonly bandwidth?: DeviceBandwidth;
}

export type { ExpertStatsSnapshot, LayerSnapshot };

/** What a model's experts did, in prompts and while decoding. */
export interface ExpertStatistics extends RunStatsSnapshot {
  /** Layers with experts of which nothing is known: a GPU has all of their experts, and tells nobody what it chooses. */
  readonly notCounted: readonly number[];
}

/** How tokens were drafted, and what came of it. */
export interface SpeculationStatistics extends SpeculationSnapshot {
  readonly source: PlannedSpeculation['source'];
  /** Most tokens drafted at a time. */
  readonly drafts: number;
}

/** What a device's own memory holds of a model. Bytes of every buffer made on it, those for loading and reading too. */
export interface DeviceMemory extends DeviceMemoryUse {
  /** What the plan said that it would be at the most. */
  readonly plannedBytes: number;
  /** What may be used, where somebody has said how much that is. */
  readonly memoryBytes?: number;
}

/** Which experts rows of a model used: [rows, layers with experts, used], of each row and layer the best first. */
export interface RoutedRows extends RoutingBlock {
  readonly layers: number;
  readonly used: number;
}

export interface RoutingRecording {
  /** Layers with experts, experts of each of them, and how many of these a row uses. */
  readonly shape: { readonly layers: number; readonly experts: number; readonly used: number };
  /** Settles when all rows have been handed on. @throws what handing them on threw */
  stop(): Promise<void>;
}

/** What a model is, in a few words; `plan` has the rest. */
export interface ModelInfo {
  /** As the file says, else the file's name. */
  readonly name: string;
  /** As GGUF spells it: `qwen3moe`. */
  readonly architecture: string;
  /** Values in all tensors of the file, those that are not used included. */
  readonly parameters: number;
  /** Tokens that prompt and answer may take together, as planned. */
  readonly context: number;
  /** Tokens that there are: ids are below it. */
  readonly vocabulary: number;
}

/** A plan that prints itself; `JSON.stringify` gives the plan alone. */
export type PrintablePlan = Plan & { explain(): string };

/** A loaded model. Every call after `dispose` throws DisposedError `disposed`. */
export interface Model extends AsyncDisposable {
  readonly info: ModelInfo;
  /** What runs where, with which kernel, in how many bytes. */
  readonly plan: PrintablePlan;
  /**
   * Ids of `text`. With `special` the text of special tokens becomes those tokens; with `addBos` the beginning-of-text
   * token comes first. Both default to false.
   */
  tokenize(text: string, options?: { readonly special?: boolean; readonly addBos?: boolean }): number[];
  /** The text of `tokens`; special tokens have none unless `special` is set. */
  detokenize(tokens: readonly number[], options?: { readonly special?: boolean }): string;
  /**
   * The chat template's text for messages. `kwargs` are variables of the template (`{ enable_thinking: false }`);
   * `addGenerationPrompt`, true by default, ends it where the assistant begins.
   * @throws TemplateError `template`; UsageError `usage` for messages that are none.
   */
  applyTemplate(
    messages: readonly ChatMessage[],
    options?: { readonly kwargs?: Readonly<Record<string, unknown>>; readonly addGenerationPrompt?: boolean },
  ): Promise<string>;
  /** A new, empty timeline. Costs no memory before it is used: sessions share the planned cache. */
  session(): Session;
  /**
   * Logits [tokens, vocabulary] of a prompt, row after row; for tests and perplexity.
   * @throws UsageError `usage` for ids that there are not, more tokens than the context holds, or more than 2 GiB of
   * logits; NonFiniteError `non_finite`.
   */
  logits(tokens: readonly number[]): Promise<Float32Array>;
  /**
   * Measures where the time goes, and keeps nothing of it; what else the model does waits meanwhile.
   * @param tokens the prompt; with `rows: 'step'` the last of them is the decoded token that is measured, after the others
   * @param options `rows`: `prompt` by default. `repetitions`: runs that the medians are of, 3 by default.
   * @returns undefined on a device that does not tell (so far all but the GPU)
   * @throws UsageError `usage` for no tokens, ids that there are not, more tokens than the context holds, or a bad option;
   * OutOfMemoryError `out_of_memory` when sessions at work have taken the cache.
   */
  profile(
    tokens: readonly number[],
    options?: { readonly rows?: 'prompt' | 'step'; readonly repetitions?: number },
  ): Promise<Profile | undefined>;
  /**
   * What the model's experts did since it was loaded, or since the last reset: in prompts and while decoding, layer by layer.
   * @param options `reset`: what was counted is forgotten afterwards
   * @returns undefined where nothing is counted: see `LoadOptions.expertStats`
   * @throws UsageError `usage` for a bad option
   */
  expertStats(options?: { readonly reset?: boolean }): Promise<ExpertStatistics | undefined>;
  /** What the model takes of a GPU's memory, and took at the most; undefined where it has no part on one. */
  deviceMemory(): Promise<DeviceMemory | undefined>;
  /**
   * What drafting came to since the model was loaded, or since the last reset.
   * @param options `reset`: what was counted is forgotten afterwards
   * @returns undefined where nothing is drafted: see `LoadOptions.speculation`
   * @throws UsageError `usage` for a bad option
   */
  speculationStats(options?: { readonly reset?: boolean }): Promise<SpeculationStatistics | undefined>;
  /**
   * Hands on which experts every row uses that is run from now on, prompts and answers alike, some rows at a time in the order
   * in which they are run. Nothing is run while more than a few calls of `onRows` are awaited. A recording ends the one before it.
   * @throws Refusal `refused` for a model without experts, or with layers whose experts a GPU chooses by itself
   */
  recordRouting(onRows: (rows: RoutedRows) => void | Promise<void>): Promise<RoutingRecording>;
  /** Ends every generation and the workers, and gives the memory back. Twice is once. */
  dispose(): Promise<void>;
}
