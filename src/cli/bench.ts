/** `conclave bench`: prefill and decode speed over several runs, and how much of the machine's memory bandwidth they use. */

import type { GenerateOptions, Model, Usage } from '../engine/types.ts';
import { InternalError, UsageError } from '../errors.ts';
import { collect, loadModel } from './answer.ts';
import { describeFlags, parseFlags, refusePositional } from './args.ts';
import { measureBandwidth } from './bandwidth.ts';
import { type Context, write } from './context.ts';
import { type ExitCode, Interrupted } from './fail.ts';
import { benchFlags } from './flags.ts';
import { columns, showBytes, showPlural, showRate, showTime, toJson } from './format.ts';
import { modelNameOf } from './options.ts';

export const benchHelp = `Measure prefill and decode speed.

  conclave bench -m model.gguf -p 512 -n 128 -r 5
  conclave bench --synthetic qwen3-30b-a3b-6l

Prefill: a prompt of random token ids in an empty session. Decode: tokens generated greedily after a prompt of one
random token, the end-of-text token ending nothing. A warm-up run of each comes first and does not count.

Memory bandwidth: as many threads as the model used each read their share of 512 MiB (at most a quarter of the free
memory) with 128-bit loads, all at once, six times; the best pass counts. The share of it is bytes of weights a token
times decoded tokens a second, over that. More than 100% means that weights stay in the processor's caches.

${describeFlags(benchFlags)}
`;

export interface Series {
  readonly tokens: number;
  /** Tokens a second, a run each. */
  readonly runs: readonly number[];
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

interface BenchResult {
  readonly model: Model['info'];
  readonly device: string;
  readonly threads: number;
  readonly loadMs: number;
  readonly prefill?: Series;
  readonly decode?: Series;
  readonly bytesPerToken: number;
  readonly bandwidth: Awaited<ReturnType<typeof measureBandwidth>>;
  /** Of the measured bandwidth, by the median decode run. */
  readonly bandwidthShare?: number;
  /** Of this process, before the bandwidth was measured. */
  readonly peakMemoryBytes: number;
}

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
    const model = await loadModel(values, context, signal);
    const loadMs = performance.now() - startMs;
    const seed = Math.max(0, values.seed ?? 0);
    const sizes = { prefill: values['prompt-tokens'] ?? 512, decode: values['decode-tokens'] ?? 128 };
    const repetitions = values.repetitions ?? 5;
    const measured = await measure(model, { ...sizes, repetitions, seed, signal }).finally(() => model.dispose());
    const peakMemoryBytes = process.resourceUsage().maxRSS * 1024;
    signal.throwIfAborted();
    const { device, threads, bytesPerToken } = model.plan;
    const bandwidth = await measureBandwidth(device === 'cpu' ? threads : 1);
    const result: BenchResult = {
      model: model.info,
      device,
      threads,
      loadMs,
      ...measured,
      bytesPerToken,
      bandwidth,
      ...(measured.decode === undefined
        ? {}
        : { bandwidthShare: (measured.decode.median * bytesPerToken) / bandwidth.bytesPerSecond }),
      peakMemoryBytes,
    };
    const name = modelNameOf(values);
    await write(context.stdout, values.json === true ? `${toJson(result)}\n` : describeBench(name, result));
    return 0;
  } finally {
    release();
  }
}

interface MeasureRequest {
  /** Tokens; 0: not measured. */
  readonly prefill: number;
  readonly decode: number;
  readonly repetitions: number;
  readonly seed: number;
  readonly signal: AbortSignal;
}

/** Runs both tests; the first run of each warms up and is dropped. */
export async function measure(
  model: Model,
  request: MeasureRequest,
): Promise<{ readonly prefill?: Series; readonly decode?: Series }> {
  const { repetitions, seed, signal } = request;
  checkSizes(request, model.info.context);
  const random = tokenSource(model.info.vocabulary, seed);
  const runs = async (prompt: number, generated: number, rate: (usage: Usage) => number) => {
    const rates: number[] = [];
    for (let run = 0; run <= repetitions; run++) {
      rates.push(rate(await once(model, random(prompt), { maxTokens: generated, signal })));
    }
    return rates.slice(1);
  };
  const { prefill, decode } = request;
  return {
    ...(prefill > 0
      ? { prefill: series(prefill, await runs(prefill, 1, (usage) => usage.prefillTokensPerSecond)) }
      : {}),
    ...(decode > 0 ? { decode: series(decode, await runs(1, decode, (usage) => usage.decodeTokensPerSecond)) } : {}),
  };
}

/** @throws UsageError `usage` when a test's tokens, with the one that it begins or ends with, are more than the context. */
function checkSizes({ prefill, decode }: MeasureRequest, context: number): void {
  for (const [what, flag, tokens] of [
    ['prefill', '-p', prefill],
    ['decode', '-n', decode],
  ] as const) {
    if (tokens < context) continue;
    throw new UsageError(
      `the ${what} test of ${tokens} tokens (${flag}) needs a context of ${tokens + 1}, and the model has ${context}; ` +
        'choose fewer tokens, or a longer context with -c',
    );
  }
}

/** One generation in a session of its own, so that nothing is reused. */
async function once(model: Model, tokens: readonly number[], options: GenerateOptions): Promise<Usage> {
  const session = model.session();
  try {
    const { finish } = await collect(session.generate({ tokens }, { ...options, temperature: 0, ignoreEos: true }));
    if (finish.usage.completionTokens !== options.maxTokens) {
      const { completionTokens } = finish.usage;
      throw new InternalError(`asked for ${options.maxTokens} tokens whatever they are, got ${completionTokens}`);
    }
    return finish.usage;
  } finally {
    await session.dispose();
  }
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

export function describeBench(name: string, result: BenchResult): string {
  const { bandwidth, prefill, decode } = result;
  const speeds = [
    ['prefill', prefill],
    ['decode', decode],
  ] as const;
  const speedRows = speeds.flatMap(([what, found]) =>
    found === undefined
      ? []
      : [
          [
            `${what} ${found.tokens} tokens`,
            ...[found.median, found.min, found.max].map((rate) => showRate(rate, 'tokens')),
          ],
        ],
  );
  const facts = [
    ['load', showTime(result.loadMs)],
    ['weights read a token', showBytes(result.bytesPerToken)],
    [
      'memory bandwidth',
      `${showRate(bandwidth.bytesPerSecond / 1e9, 'GB')} (${showBytes(bandwidth.bytes)} read by ${showPlural(bandwidth.threads, 'thread')})`,
    ],
    ...(result.bandwidthShare === undefined
      ? []
      : [['share of it decoding', `${Math.round(result.bandwidthShare * 100)}%`]]),
    ['peak memory', showBytes(result.peakMemoryBytes)],
  ];
  const runs = Math.max(prefill?.runs.length ?? 0, decode?.runs.length ?? 0);
  return [
    `${name}: ${result.model.architecture} on ${result.device}, ${showPlural(result.threads, 'thread')}, ${showPlural(runs, 'run')} after a warm-up`,
    '',
    ...columns([['', 'median', 'min', 'max'], ...speedRows], [1, 2, 3]),
    '',
    ...columns(facts),
    '',
  ].join('\n');
}
