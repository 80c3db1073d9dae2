/** A loaded model: the engine that runs it, its tokenizer, and the sessions over it. */

import { DisposedError, UsageError } from '../errors.ts';
import type { ModelFile } from '../format/model-file.ts';
import { type RoutedModel, recordedModel } from '../plan/routing.ts';
import type { Tokenizer } from '../tokenizer/index.ts';
import type { EngineClient } from './engine-client.ts';
import { checkMessages, checkProfileOptions, checkStatsOptions, checkTokens } from './options.ts';
import { ModelSession } from './session.ts';
import type { ChatTemplates } from './templates.ts';
import type {
  ChatMessage,
  DeviceMemory,
  ExpertStatistics,
  Model,
  ModelInfo,
  PrintablePlan,
  Profile,
  Prompt,
  RoutedRows,
  RoutingRecording,
  SamplingOptions,
  Session,
  SpeculationStatistics,
} from './types.ts';

/** Bytes of logits that `Model.logits` gives at the most. */
const MAX_LOGITS_BYTES = 2 ** 31;

export interface ModelParts {
  readonly file: ModelFile;
  /** Of the model that drafts for it. */
  readonly draftFile?: ModelFile;
  readonly engine: EngineClient;
  readonly tokenizer: Tokenizer;
  readonly templates: ChatTemplates;
  readonly sampling: SamplingOptions;
  readonly info: ModelInfo;
  readonly plan: PrintablePlan;
  /** What is known of its layers with experts. */
  readonly routed?: RoutedModel;
}

export class LoadedModel implements Model {
  readonly info: ModelInfo;
  readonly plan: PrintablePlan;
  readonly #parts: ModelParts;
  readonly #sessions = new Set<ModelSession>();
  #nextSession = 0;
  #disposing: Promise<void> | undefined;

  constructor(parts: ModelParts) {
    this.info = parts.info;
    this.plan = parts.plan;
    this.#parts = parts;
  }

  tokenize(text: string, options: { readonly special?: boolean; readonly addBos?: boolean } = {}): number[] {
    this.#check();
    return this.#parts.tokenizer.encode(text, options);
  }

  detokenize(tokens: readonly number[], options: { readonly special?: boolean } = {}): string {
    this.#check();
    return this.#parts.tokenizer.decode(tokens, options);
  }

  async applyTemplate(
    messages: readonly ChatMessage[],
    options: { readonly kwargs?: Readonly<Record<string, unknown>>; readonly addGenerationPrompt?: boolean } = {},
  ): Promise<string> {
    this.#check();
    checkMessages(messages);
    return (await this.#parts.templates.render(messages, options)).text;
  }

  session(): Session {
    this.#check();
    const { engine, tokenizer, sampling } = this.#parts;
    const session = new ModelSession(
      {
        engine,
        tokenizer,
        sampling,
        context: this.info.context,
        vocabulary: this.info.vocabulary,
        check: () => this.#check(),
        promptTokens: (prompt, kwargs) => this.#promptTokens(prompt, kwargs),
        onDispose: (disposed) => this.#sessions.delete(disposed),
      },
      this.#nextSession++,
    );
    this.#sessions.add(session);
    return session;
  }

  async logits(tokens: readonly number[]): Promise<Float32Array> {
    this.#check();
    const { vocabulary } = this.info;
    this.#checkRows('logits', tokens);
    const bytes = tokens.length * vocabulary * Float32Array.BYTES_PER_ELEMENT;
    if (bytes > MAX_LOGITS_BYTES) {
      const most = Math.floor(MAX_LOGITS_BYTES / (vocabulary * Float32Array.BYTES_PER_ELEMENT));
      throw new UsageError(
        `logits of ${tokens.length} tokens take ${bytes} bytes, the most is ${MAX_LOGITS_BYTES}; ask for at most ${most} tokens at a time`,
      );
    }
    return this.#parts.engine.logits(Int32Array.from(tokens));
  }

  async profile(
    tokens: readonly number[],
    options: { readonly rows?: 'prompt' | 'step'; readonly repetitions?: number } = {},
  ): Promise<Profile | undefined> {
    this.#check();
    this.#checkRows('a profile', tokens);
    checkProfileOptions(options);
    const { rows = 'prompt', repetitions = 3 } = options;
    return this.#parts.engine.profile({ tokens: Int32Array.from(tokens), rows, repetitions });
  }

  async expertStats(options: { readonly reset?: boolean } = {}): Promise<ExpertStatistics | undefined> {
    this.#check();
    checkStatsOptions(options, 'expertStats');
    const { engine, routed } = this.#parts;
    const counted = await engine.expertStats(options.reset === true);
    if (counted === undefined || routed === undefined) return undefined;
    return { ...counted, notCounted: routed.layers.filter((layer) => !routed.seen.includes(layer)) };
  }

  async speculationStats(options: { readonly reset?: boolean } = {}): Promise<SpeculationStatistics | undefined> {
    this.#check();
    checkStatsOptions(options, 'speculationStats');
    const { speculation } = this.plan;
    const counted = await this.#parts.engine.speculationStats(options.reset === true);
    if (counted === undefined || speculation === undefined) return undefined;
    const { source, drafts } = speculation;
    return { source, drafts, ...counted };
  }

  async deviceMemory(): Promise<DeviceMemory | undefined> {
    this.#check();
    const use = await this.#parts.engine.deviceMemory();
    const part = this.plan.parts.find(({ device }) => device === use?.device);
    return use && { ...use, plannedBytes: part?.bytes.total ?? 0, memoryBytes: part?.memoryBytes };
  }

  async recordRouting(onRows: (rows: RoutedRows) => void | Promise<void>): Promise<RoutingRecording> {
    this.#check();
    const { engine, routed } = this.#parts;
    const { layers, experts, used } = recordedModel(this.plan, routed);
    const shape = { layers: layers.length, experts, used };
    const stop = await engine.recordRouting(({ rows, ids }) => onRows({ rows, ids, layers: shape.layers, used }));
    return { shape, stop };
  }

  dispose(): Promise<void> {
    this.#disposing ??= this.#dispose();
    return this.#disposing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.dispose();
  }

  async #dispose(): Promise<void> {
    const { engine, templates, file, draftFile } = this.#parts;
    try {
      await Promise.all([engine.dispose(), templates.dispose()]);
    } finally {
      await Promise.all([file.close(), draftFile?.close()]);
    }
    await Promise.all(Array.from(this.#sessions, (session) => session.dispose()));
  }

  #check(): void {
    if (this.#disposing !== undefined) throw new DisposedError('the model');
  }

  /** @throws UsageError `usage` for what is no prompt, or one that the context does not hold */
  #checkRows(what: string, tokens: readonly number[]): void {
    const { vocabulary, context } = this.info;
    checkTokens(tokens, vocabulary);
    if (tokens.length > context) {
      throw new UsageError(
        `${what} of ${tokens.length} tokens: the context holds only ${context}; load the model with a larger context`,
      );
    }
  }

  async #promptTokens(
    prompt: Prompt,
    kwargs: Readonly<Record<string, unknown>> | undefined,
  ): Promise<readonly number[]> {
    const { tokenizer, templates } = this.#parts;
    if ('tokens' in prompt) return [...prompt.tokens];
    if ('text' in prompt) return tokenizer.encode(prompt.text, { special: true, addBos: tokenizer.addBos });
    return tokenizer.encodeTemplated(await templates.render(prompt, { kwargs, addGenerationPrompt: true }));
  }
}
