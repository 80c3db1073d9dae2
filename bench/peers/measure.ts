/**
 * What both engines' children share: the job they are given, the figures they give back, and the token ids that make
 * the work the same on both sides.
 */

import { readFileSync } from 'node:fs';

export type EngineName = 'conclave' | 'llama.cpp';

/** What a child is told, as JSON in its first argument. */
export interface Job {
  readonly model: string;
  readonly threads: number;
  /** Tokens. */
  readonly context: number;
  /** Rows a prompt chunk. */
  readonly batch: number;
  /** Number of ids in the model's vocabulary. */
  readonly vocabulary: number;
  /** How often a child measures each thing; it reports the medians. */
  readonly repeats: number;
}

/** Tokens of the prompts that are timed, and tokens decoded. */
export const PROMPTS = [128, 512] as const;
export const DECODE = 128;

export interface Figures {
  readonly loadMs: number;
  /** Load, then the first token after a prompt of 128: what lazily read weights put off is in it. */
  readonly firstTokenMs: number;
  readonly prefill128TokensPerSecond: number;
  readonly prefill512TokensPerSecond: number;
  readonly decodeTokensPerSecond: number;
  /** The child's highest resident set, file pages included. */
  readonly peakBytes: number;
  /** Greedy tokens after the prompt of 128. */
  readonly greedy: readonly number[];
}

/** One engine on one model, in one process. */
export interface Engine {
  /** Opens the model with its context; resolves when it can take a prompt. */
  load(): Promise<void>;
  /**
   * Greedy decoding after `prompt`, nothing reused from before. Times are by the wall clock from the call.
   * @returns the tokens, when the first was there, and when the last was there
   */
  generate(prompt: readonly number[], count: number): Promise<Generated>;
  dispose(): Promise<void>;
}

export interface Generated {
  readonly tokens: readonly number[];
  readonly firstMs: number;
  readonly lastMs: number;
}

export function readJob(): Job {
  return JSON.parse(process.argv[2] ?? '') as Job;
}

/** `count` token ids that look like nothing in particular, the same in every process; the special ids at the ends are spared. */
export function promptOf(count: number, vocabulary: number): number[] {
  let state = 0x9e3779b9;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(vocabulary * (0.05 + (0.85 * state) / 2 ** 32));
  });
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? Number.NaN) + upper) / 2;
}

/** Highest resident set of this process so far, in bytes. */
function peakBytes(): number {
  try {
    const kilobytes = /^VmHWM:\s*(\d+) kB/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1];
    if (kilobytes !== undefined) return Number(kilobytes) * 1024;
  } catch {
    // Not Linux: the runtime's own count serves.
  }
  return process.resourceUsage().maxRSS * 1024;
}

/** The whole measurement of a child: load, warm up, then every figure `job.repeats` times. */
export async function measure(engine: Engine, job: Job): Promise<Figures> {
  const prompt = (count: number) => promptOf(count, job.vocabulary);
  const started = performance.now();
  await engine.load();
  const loadMs = performance.now() - started;
  await engine.generate(prompt(128), 1);
  const firstTokenMs = performance.now() - started;
  await engine.generate(prompt(512), 8);

  const prefill: Record<number, number[]> = { 128: [], 512: [] };
  const decode: number[] = [];
  let greedy: readonly number[] = [];
  for (let repeat = 0; repeat < job.repeats; repeat++) {
    for (const count of PROMPTS) {
      const { firstMs } = await engine.generate(prompt(count), 1);
      prefill[count]?.push((count / firstMs) * 1000);
    }
    const made = await engine.generate(prompt(128), DECODE + 1);
    if (made.tokens.length !== DECODE + 1) {
      throw new Error(`${made.tokens.length} tokens came, ${DECODE + 1} were asked for`);
    }
    decode.push((DECODE / (made.lastMs - made.firstMs)) * 1000);
    greedy = made.tokens;
  }
  const figures = {
    loadMs,
    firstTokenMs,
    prefill128TokensPerSecond: median(prefill[128] ?? []),
    prefill512TokensPerSecond: median(prefill[512] ?? []),
    decodeTokensPerSecond: median(decode),
    peakBytes: peakBytes(),
    greedy,
  };
  await engine.dispose();
  return figures;
}

/** Runs a child's measurement and hands its figures to the parent, as the last line of stdout. */
export async function runChild(make: (job: Job) => Engine): Promise<void> {
  const job = readJob();
  const figures = await measure(make(job), job);
  await new Promise((resolve) => process.stdout.write(`\n${JSON.stringify(figures)}\n`, resolve));
  process.exit(0);
}
