/** What `load` and `generate` take, checked, and how sampling is decided: the caller's word, else the file's, else ours. */

import { randomSeed } from '../backend/random.ts';
import type { SamplerSettings } from '../backend/sampling.ts';
import { UsageError } from '../errors.ts';
import { prefetchNames } from '../experts/prefetch.ts';
import { parseExpertCache, parsePins } from '../experts/size.ts';
import { faultyId, MOST_EXPERTS } from '../experts/trace.ts';
import { isDevice } from '../plan/devices.ts';
import type { GivenTrace } from '../plan/routing.ts';
import { readSpeculation, type SpeculationOption } from '../plan/speculation.ts';
import {
  abortSignal,
  type Check,
  callback,
  checkOptions,
  flag,
  numberFrom,
  oneOf,
  plainObject,
  show,
  texts,
  wholeFrom,
} from './check.ts';
import type { GenerateOptions, LoadOptions, Prompt, SamplingOptions } from './types.ts';

/** Longest stop string in UTF-16 units, and most of them: every character is matched against each. */
const MAX_STOP_LENGTH = 4096;
const MAX_STOPS = 256;

/** Most rows of a prompt in one run: buffers grow with them, and longer runs are no faster. */
const MAX_BATCH = 8192;

/**
 * Most that a penalty or a bias adds to a logit, and most that the repetition penalty multiplies or divides it by: far
 * beyond any use, and far from what overflows a logit, which would read as a fault of the model.
 */
const MAX_SHIFT = 1e6;
const MAX_FACTOR = 1e6;

/** Threads that any machine takes, and those that each of its cores takes. */
const MAX_SPARE_THREADS = 64;
const MAX_THREADS_A_CORE = 4;

const shift = numberFrom(-MAX_SHIFT, MAX_SHIFT);
/** What a repetition penalty may be. */
export const repeatFactor: Check = numberFrom(1 / MAX_FACTOR, MAX_FACTOR);

const loadChecks: Readonly<Record<keyof LoadOptions, Check>> = {
  device: (value) => (isDevice(value) ? undefined : "'auto', 'cpu', 'gpu', 'gpu:0', 'gpu:1' … or 'reference'"),
  gpuLayers: (value) =>
    value === 'auto' ? undefined : wholeFrom(-1)(value) && "a whole number from 0 on, -1 or 'auto'",
  gpuMemoryBytes: wholeFrom(1),
  gpuChecks: flag,
  expertCache: expertCacheText,
  expertUses: counts,
  expertPrefetch: oneOf(...prefetchNames),
  expertPin: pinText,
  expertStats: flag,
  recordRouting: flag,
  routing: givenTrace,
  cpuMoe: (value) => (value === true ? undefined : wholeFrom(1)(value) && 'true or a number of layers'),
  threads: wholeFrom(1, 1024),
  context: wholeFrom(1),
  batch: wholeFrom(1, MAX_BATCH),
  cache: oneOf('f32', 'f16'),
  arenaBytes: wholeFrom(1),
  ignoreKeys: texts,
  memoryBytes: wholeFrom(0),
  sessions: wholeFrom(1, 1024),
  speculation: speculationOption,
  onProgress: callback,
  onFault: callback,
  signal: abortSignal,
};

const generateChecks: Readonly<Record<keyof GenerateOptions, Check>> = {
  temperature: numberFrom(0),
  topK: wholeFrom(0),
  topP: numberFrom(0, 1),
  minP: numberFrom(0, 1),
  repeatPenalty: repeatFactor,
  presencePenalty: shift,
  frequencyPenalty: shift,
  penaltyWindow: wholeFrom(-1),
  logitBias: plainObject,
  seed: wholeFrom(0),
  maxTokens: wholeFrom(0),
  stop: stopStrings,
  ignoreEos: flag,
  reuse: oneOf('all', 'prompt'),
  signal: abortSignal,
  chatTemplateKwargs: plainObject,
};

const profileChecks = { rows: oneOf('prompt', 'step'), repetitions: wholeFrom(1, 1000) };

/** Counts by layer and expert; whether they are of the model, its plan sees. */
function counts(value: unknown): string | undefined {
  const isCount = (count: unknown) => typeof count === 'number' && count >= 0 && count < Infinity;
  const isLayer = (layer: unknown) =>
    (Array.isArray(layer) || (ArrayBuffer.isView(layer) && !(layer instanceof DataView))) &&
    Array.from(layer as ArrayLike<unknown>).every(isCount);
  return Array.isArray(value) && value.every(isLayer)
    ? undefined
    : 'arrays of counts from 0 on, one for each layer with experts';
}

/** Ids as they were recorded; whether they are of the model, its plan sees. */
function givenTrace(value: unknown): string | undefined {
  const { layers, experts, used, ids } = (plainObject(value) === undefined ? value : {}) as Partial<GivenTrace>;
  const right =
    [layers, experts, used].every((count) => wholeFrom(1)(count) === undefined) &&
    ids instanceof Uint16Array &&
    ids.length % ((layers as number) * (used as number)) === 0 &&
    (experts as number) <= MOST_EXPERTS &&
    faultyId(ids, { experts: experts as number, used: used as number }) === undefined;
  return right
    ? undefined
    : '{ layers, experts, used, ids }, the ids a Uint16Array [tokens, layers, used] of experts, each once in a layer';
}

/** @throws UsageError `usage` */
export function checkStatsOptions(options: Readonly<{ reset?: unknown }>, what: string): void {
  checkOptions(options, { reset: flag }, what);
}

/** What stands for a cache of experts; its own error says more. */
function expertCacheText(value: unknown): string | undefined {
  if (typeof value !== 'string') return "a policy and a size, as 'slru:25%'";
  parseExpertCache(value);
  return undefined;
}

/** How many slots are pinned; its own error says more. */
function pinText(value: unknown): string | undefined {
  if (typeof value !== 'string') return "a number of slots or a share, as '64' or '25%'";
  parsePins(value);
  return undefined;
}

/** How tokens are drafted; its own error says more. */
function speculationOption(value: unknown): undefined {
  readSpeculation(value as SpeculationOption);
}

/** @throws UsageError `usage` */
export function checkProfileOptions(options: Readonly<Partial<Record<keyof typeof profileChecks, unknown>>>): void {
  checkOptions(options, profileChecks, 'profile');
}

/** @throws UsageError `usage` */
export function checkLoadOptions(options: LoadOptions): void {
  checkOptions(options, loadChecks, 'load');
}

/**
 * That there are not so many threads that starting them takes minutes and most of the memory (each takes about 12 MB):
 * beyond the cores they only wait for one another.
 * @param cores of the machine
 * @throws UsageError `usage`
 */
export function checkThreads(threads: number | undefined, cores: number): void {
  const most = Math.max(MAX_SPARE_THREADS, MAX_THREADS_A_CORE * cores);
  if (threads === undefined || threads <= most) return;
  throw new UsageError(
    `threads: found ${threads}, and this machine's ${cores} cores take at most ${most}; more threads than cores are slower`,
    { data: { option: 'threads', cores } },
  );
}

/** @throws UsageError `usage` */
export function checkGenerateOptions(options: GenerateOptions): void {
  checkOptions(options, generateChecks, 'generate');
}

function stopStrings(value: unknown): string | undefined {
  const right =
    Array.isArray(value) &&
    value.length <= MAX_STOPS &&
    value.every(
      (stop) => typeof stop === 'string' && stop.length > 0 && stop.length <= MAX_STOP_LENGTH && stop.isWellFormed(),
    );
  return right ? undefined : `an array of at most ${MAX_STOPS} texts of 1 to ${MAX_STOP_LENGTH} characters`;
}

/**
 * @param file what the model's file asks for
 * @throws UsageError `usage` for a logit bias that names no token
 */
export function samplerSettings(
  options: SamplingOptions,
  {
    file,
    vocabulary,
    context,
  }: { readonly file: SamplingOptions; readonly vocabulary: number; readonly context: number },
): SamplerSettings {
  const window = options.penaltyWindow ?? file.penaltyWindow ?? 64;
  return {
    temperature: options.temperature ?? file.temperature ?? 0.8,
    topK: options.topK ?? file.topK ?? 40,
    topP: options.topP ?? file.topP ?? 0.95,
    minP: options.minP ?? file.minP ?? 0.05,
    repeatPenalty: options.repeatPenalty ?? file.repeatPenalty ?? 1,
    presencePenalty: options.presencePenalty ?? 0,
    frequencyPenalty: options.frequencyPenalty ?? 0,
    // What lies further back than the context cannot be seen, and the window is allocated.
    penaltyWindow: window === -1 ? context : Math.min(window, context),
    logitBias: biases(options.logitBias ?? {}, vocabulary),
    seed: options.seed ?? randomSeed(),
  };
}

function biases(bias: Readonly<Record<number, number>>, vocabulary: number): (readonly [number, number])[] {
  return Object.entries(bias).map(([key, value]) => {
    const id = Number(key);
    if (!/^(?:0|[1-9]\d*)$/.test(key) || id >= vocabulary) {
      throw new UsageError(`logitBias: found token ${show(key)}, expected a token's id, 0 to ${vocabulary - 1}`, {
        data: { option: 'logitBias' },
      });
    }
    if (value !== -Infinity && shift(value) !== undefined) {
      throw new UsageError(
        `logitBias: found ${show(value)} for token ${id}, expected ${shift(value)}, or -Infinity to ban it`,
        { data: { option: 'logitBias' } },
      );
    }
    return [id, value] as const;
  });
}

/**
 * That a prompt is messages, text or token ids.
 * @throws UsageError `usage`
 */
export function checkPrompt(prompt: Prompt, vocabulary: number): void {
  if (Array.isArray(prompt)) {
    checkMessages(prompt);
  } else if (typeof prompt === 'object' && prompt !== null && 'tokens' in prompt) {
    checkTokens(prompt.tokens, vocabulary);
  } else if (typeof prompt !== 'object' || prompt === null || !('text' in prompt) || typeof prompt.text !== 'string') {
    throw new UsageError(`the prompt: found ${show(prompt)}, expected messages, { text } or { tokens }`);
  }
}

/** @throws UsageError `usage` */
export function checkMessages(messages: readonly unknown[]): void {
  if (!Array.isArray(messages)) throw new UsageError(`the messages: found ${show(messages)}, expected an array`);
  if (messages.length === 0) throw new UsageError('the prompt is empty: give at least one message');
  messages.forEach(checkMessage);
}

function checkMessage(message: unknown, index: number): void {
  const { role, content } = (typeof message === 'object' && message !== null ? message : {}) as {
    role?: unknown;
    content?: unknown;
  };
  if (typeof role === 'string' && typeof content === 'string') return;
  throw new UsageError(
    `message ${index} of the prompt: found role ${show(role)} and content ${show(content)}, expected two texts, as { role: 'user', content: 'Hello' }`,
  );
}

/** @throws UsageError `usage` for no tokens, and for an id outside the vocabulary */
export function checkTokens(tokens: ArrayLike<number>, vocabulary: number): void {
  if (!Array.isArray(tokens) && (!ArrayBuffer.isView(tokens) || tokens instanceof DataView))
    throw new UsageError(`tokens: found ${show(tokens)}, expected an array of token ids`);
  if (tokens.length === 0) throw new UsageError('the prompt is empty: give at least one token');
  for (let index = 0; index < tokens.length; index++) {
    const id = tokens[index];
    if (!Number.isInteger(id) || id! < 0 || id! >= vocabulary) {
      throw new UsageError(
        `token ${index} of the prompt: found ${show(id)}, expected an id from 0 to ${vocabulary - 1}`,
      );
    }
  }
}
