/**
 * `conclave bench`: prefill and decode speed over several runs, where a GPU's time goes, and how much of the memory's
 * bandwidth decoding uses.
 */

import type { DeviceBandwidth } from '../backend/backend.ts';
import type { GenerateOptions, Model, Profile, Prompt, Session, Usage } from '../engine/types.ts';
import { InternalError, UsageError } from '../errors.ts';
import { collect, loadModel } from './answer.ts';
import { describeFlags, type ParsedArguments, parseFlags, refusePositional } from './args.ts';
import { measureBandwidth } from './bandwidth.ts';
import { type BenchProfile, type BenchResult, describeBench, type Series } from './bench-text.ts';
import { type Context, write } from './context.ts';
import { type ExitCode, Interrupted } from './fail.ts';
import { benchFlags, shapeLines } from './flags.ts';
import { showCount, toJson } from './format.ts';
import { modelNameOf } from './options.ts';
import { readPromptFile } from './prompt.ts';
import { ratesOf } from './speculation-text.ts';
import { readRouting } from './trace-input.ts';

type BenchValues = ParsedArguments<typeof benchFlags>['values'];

/** Runs that the figures of a profile are medians of. */
const PROFILE_REPETITIONS = 3;

export const benchHelp = `Measure prefill and decode speed.

  conclave bench -m model.gguf -p 512 -n 128 -r 5
  conclave bench --synthetic qwen3-30b-a3b --device gpu -d 512
  conclave bench --synthetic qwen3-30b-a3b --expert-cache lfu:50% -g -1 --routing traces/mine

Prefill: a prompt of random token ids in an empty session. Decode: tokens generated greedily after a
prompt of random tokens, one by default (-d), the end-of-text token ending nothing; the prompt is
read once, but for its last token, which is another one each time. A warm-up run of each comes first
and does not count.

Memory bandwidth, on the CPU: as many threads as the model used each read their share of 512 MiB (at
most a quarter of the free memory) with 128-bit loads, all at once, six times; on the GPU: a kernel
reads 64 MiB to 1 GiB, eight times. The best pass counts. The share of it is what a token reads, the
weights that it uses and the cache of those before it, times decoded tokens a second, over that.
More than 100% means that weights stay in the processor's caches.

On the GPU a prompt and a decoded token in the middle of the test are measured by kernel besides,
the same kernel of all layers as one, by the GPU's clock, apart from the others; medians
of ${PROFILE_REPETITIONS} runs.

With --spec the figures are of decoding with drafts as they come, and what came of these is shown with the
rates that were measured with and without them. Random tokens foretell little of any use: give prompts with -f.

Where experts are split between GPU and CPU, the share of hits and what a run waits for are shown as
well, of the measured runs, warm-ups left out; --expert-stats shows them layer by layer. Random weights
choose all experts alike, which no trained model does: with --routing the rows use those of a recorded
trace (conclave trace), one token after the other and over again.

${describeFlags(benchFlags)}

${shapeLines}
`;

/** @throws UsageError `usage`; what loading and generating throw; Interrupted after Ctrl-C. */
export async function bench(argv: readonly string[], context: Context): Promise<ExitCode> {
  const { values, positionals } = parseFlags(benchFlags, argv);
  if (values.help === true) {
    await write(context.stdout, benchHelp);
    return 0;
  }
  refusePositional(positionals);
  const controller = new AbortController();
  const release = context.onInterrupt(() => {
    if (controller.signal.aborted) context.exit(130);
    controller.abort(new Interrupted());
  });
  const { signal } = controller;
  try {
    const startMs = performance.now();
    const prompts = await promptsOf(values);
    const routing = values.routing === undefined ? undefined : await readRouting(values.routing);
    const model = await loadModel(values, context, { signal, routing, expertStats: values['expert-stats'] });
    const loadMs = performance.now() - startMs;
    const request: MeasureRequest = {
      prefill: values['prompt-tokens'] ?? 512,
      decode: values['decode-tokens'] ?? 128,
      depth: values.depth ?? 1,
      prompts,
      repetitions: values.repetitions ?? 5,
      seed: Math.max(0, values.seed ?? 0),
      signal,
    };
    const { profiled, ...measured } = await measureAll(model, request).finally(() => model.dispose());
    const peakMemoryBytes = process.resourceUsage().maxRSS * 1024;
    signal.throwIfAborted();
    const { adapter, parts, threads, bytesPerToken, cache } = model.plan;
    const devices = parts.map(({ device }) => device).join(' + ');
    // Of one device's memory it says nothing where the model reads two.
    const bandwidth = profiled === undefined || parts.length > 1 ? await bandwidthOf(model.plan) : profiled.bandwidth;
    const cacheBytesPerToken = (cache.bytes / (cache.pages * cache.pageRows)) * (decodedPosition(request) + 1);
    const { decode } = measured;
    const result: BenchResult = {
      model: model.info,
      device: devices,
      adapter,
      threads,
      loadMs,
      ...measured,
      bytesPerToken,
      bandwidth,
      ...(decode === undefined ? {} : { cacheBytesPerToken }),
      ...(decode === undefined || bandwidth === undefined
        ? {}
        : { bandwidthShare: (decode.median * (bytesPerToken + cacheBytesPerToken)) / bandwidth.bytesPerSecond }),
      ...(profiled === undefined ? {} : { profile: { prefill: profiled.prefill, decode: profiled.decode } }),
      peakMemoryBytes,
    };
    const name = modelNameOf(values);
    const text = () => describeBench(name, result, { layers: values['expert-stats'] === true });
    await write(context.stdout, values.json === true ? `${toJson(result)}\n` : text());
    return 0;
  } finally {
    release();
  }
}

/** Of the machine's own memory, with the threads that read the weights; where another device has some, a share says nothing. */
async function bandwidthOf({ device, parts, threads }: Model['plan']): Promise<DeviceBandwidth | undefined> {
  return parts.length > 1 ? undefined : measureBandwidth(device === 'cpu' ? threads : 1);
}

interface MeasureRequest {
  /** Tokens; 0: not measured. */
  readonly prefill: number;
  readonly decode: number;
  /** Tokens of the prompt that is decoded after, at least 1. */
  readonly depth: number;
  /** What is decoded after instead, each in turn. */
  readonly prompts?: readonly string[] | undefined;
  readonly repetitions: number;
  readonly seed: number;
  readonly signal: AbortSignal;
}

interface Profiled {
  readonly prefill?: BenchProfile;
  readonly decode?: BenchProfile;
  readonly bandwidth?: DeviceBandwidth;
}

/** Both tests, where the time of each goes if the device tells, and what all of it took of the GPU's memory. */
async function measureAll(
  model: Model,
  request: MeasureRequest,
): Promise<Measured & Pick<BenchResult, 'gpuMemory'> & { readonly profiled?: Profiled }> {
  const measured = await measure(model, request);
  request.signal.throwIfAborted();
  // Before the speed of the memory is measured, in a buffer that no model has.
  const gpuMemory = await model.deviceMemory();
  const profiled = await profile(model, request);
  return {
    ...measured,
    ...(profiled === undefined ? {} : { profiled }),
    ...(gpuMemory === undefined ? {} : { gpuMemory }),
  };
}

type Measured = Pick<BenchResult, 'prefill' | 'decode' | 'experts' | 'speculation'>;

/** Runs both tests; the first run of each warms up and is dropped, with what its experts did. */
export async function measure(model: Model, request: MeasureRequest): Promise<Measured> {
  const { prefill, decode, depth, prompts, repetitions, seed, signal } = request;
  checkSizes(request, model.info.context);
  const random = tokenSource(model.info.vocabulary, seed);
  const drafts = model.plan.speculation !== undefined;
  const rates = async (run: () => Promise<number>) => {
    const all: number[] = [];
    for (let i = 0; i <= repetitions; i++) {
      all.push(await run());
      if (i > 0) continue;
      await model.expertStats({ reset: true });
      if (drafts) await model.speculationStats({ reset: true });
    }
    return all.slice(1);
  };
  let found: Measured = {};
  const experts = async (test: 'prefill' | 'decode'): Promise<Pick<Measured, 'experts'>> => {
    const stats = await model.expertStats();
    if (stats === undefined) return {};
    const { prompt, step, notCounted } = stats;
    return { experts: { ...found.experts, [test]: test === 'prefill' ? prompt : step, notCounted } };
  };
  if (prefill > 0) {
    // Each in a session of its own, so that nothing is reused.
    const runs = await rates(() =>
      inSession(model, async (session) => {
        const usage = await generate(session, { tokens: random(prefill) }, { maxTokens: 1, signal });
        return usage.prefillTokensPerSecond;
      }),
    );
    found = { prefill: series(prefill, runs), ...(await experts('prefill')) };
  }
  if (decode > 0 && prompts !== undefined) {
    const runs = await rates(() => decodeRate(model, prompts, { maxTokens: decode, signal }));
    found = { ...found, decode: series(decode, runs), ...(await experts('decode')) };
  } else if (decode > 0) {
    // All in one session, so that what they have in common is read once.
    const common = random(depth - 1);
    const runs = await inSession(model, (session) =>
      rates(async () => {
        const usage = await generate(session, { tokens: [...common, ...random(1)] }, { maxTokens: decode, signal });
        return usage.decodeTokensPerSecond;
      }),
    );
    const made = { ...series(decode, runs), ...(depth > 1 ? { depth } : {}) };
    found = { ...found, decode: made, ...(await experts('decode')) };
  }
  const speculation = decode > 0 && drafts ? await model.speculationStats() : undefined;
  if (speculation === undefined) return found;
  return { ...found, speculation: { ...speculation, ...ratesOf(speculation, found.experts?.decode) } };
}

/** The position of the token in the middle of the decode test. */
function decodedPosition({ depth, decode }: MeasureRequest): number {
  return depth + (decode >> 1) - 1;
}

/** Where a prompt's and a decoded token's time goes; nothing where the device does not tell. */
async function profile(model: Model, request: MeasureRequest): Promise<Profiled | undefined> {
  const random = tokenSource(model.info.vocabulary, request.seed);
  const ask = async (rows: 'prompt' | 'step', tokens: number) => {
    const found = await model.profile(random(tokens), { rows, repetitions: PROFILE_REPETITIONS });
    request.signal.throwIfAborted();
    return found;
  };
  const position = decodedPosition(request);
  const prefill = request.prefill > 0 ? await ask('prompt', request.prefill) : undefined;
  const decode = request.decode > 0 ? await ask('step', position + 1) : undefined;
  const bandwidth = decode?.bandwidth ?? prefill?.bandwidth;
  const part = ({ bandwidth: _, ...run }: Profile, tokens: number, first: number) => ({
    tokens,
    position: first,
    ...run,
  });
  if (prefill === undefined && decode === undefined) return undefined;
  return {
    ...(prefill === undefined ? {} : { prefill: part(prefill, request.prefill, 0) }),
    ...(decode === undefined ? {} : { decode: part(decode, 1, position) }),
    bandwidth,
  };
}

/** @throws UsageError `usage` when a test's tokens, with the one that it begins or ends with, are more than the context. */
function checkSizes({ prefill, decode, depth }: MeasureRequest, context: number): void {
  for (const [what, flags, tokens, needed] of [
    ['prefill', '-p', prefill, prefill + 1],
    ['decode', depth > 1 ? `-n, after the ${showCount(depth)} of -d` : '-n', decode, decode === 0 ? 0 : depth + decode],
  ] as const) {
    if (needed <= context) continue;
    throw new UsageError(
      `the ${what} test of ${tokens} tokens (${flags}) needs a context of ${needed}, and the model has ${context}; ` +
        'choose fewer tokens, or a longer context with -c',
    );
  }
}

async function inSession<T>(model: Model, use: (session: Session) => Promise<T>): Promise<T> {
  const session = model.session();
  try {
    return await use(session);
  } finally {
    await session.dispose();
  }
}

/** Tokens a second of answers to all prompts, the first token of each left out. */
async function decodeRate(model: Model, prompts: readonly string[], options: GenerateOptions): Promise<number> {
  let tokens = 0;
  let elapsedMs = 0;
  for (const content of prompts) {
    const usage = await inSession(model, (session) => generate(session, [{ role: 'user', content }], options));
    tokens += usage.completionTokens - 1;
    elapsedMs += usage.decodeMs;
  }
  return elapsedMs > 0 ? (tokens * 1000) / elapsedMs : 0;
}

/** @throws UsageError `usage`; SourceError `source` for a file that cannot be read */
async function promptsOf({ file, depth }: BenchValues): Promise<readonly string[] | undefined> {
  if (file === undefined) return undefined;
  if (depth !== undefined) throw new UsageError('--depth is of random tokens, and -f decodes after prompts: give one');
  const lines = (await readPromptFile(file)).split(/\r?\n/).filter((line) => line.trim() !== '');
  if (lines.length === 0) throw new UsageError(`${file} has no prompt in it; one a line is expected`);
  return lines;
}

/** Generates as many tokens as asked, whatever they are. */
async function generate(session: Session, prompt: Prompt, options: GenerateOptions): Promise<Usage> {
  const { finish } = await collect(session.generate(prompt, { ...options, temperature: 0, ignoreEos: true }));
  const { completionTokens } = finish.usage;
  if (completionTokens !== options.maxTokens) {
    throw new InternalError(`asked for ${options.maxTokens} tokens whatever they are, got ${completionTokens}`);
  }
  return finish.usage;
}

/** Random ids below `vocabulary`, the same for the same seed (a 32-bit mixing counter). */
export function tokenSource(vocabulary: number, seed: number): (count: number) => number[] {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return (mixed ^ (mixed >>> 15)) >>> 0;
  };
  return (count) => Array.from({ length: count }, () => next() % vocabulary);
}

/** `runs` is not empty. */
export function series(tokens: number, runs: readonly number[]): Series {
  const sorted = [...runs].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
  return { tokens, runs, median, min: sorted[0]!, max: sorted.at(-1)! };
}
