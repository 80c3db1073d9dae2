/** A scheduler with pages and a clock of its own, over an executable without weights or another; keeps what becomes of requests. */

import { MAX_STEP_ROWS } from '../../src/backend/kernel.ts';
import type { SamplerSettings } from '../../src/backend/sampling.ts';
import { PagePool, Timeline } from '../../src/engine/kv-cache.ts';
import { Request } from '../../src/engine/request.ts';
import { Sampler } from '../../src/engine/sampler.ts';
import { Scheduler, type SchedulerOptions } from '../../src/engine/scheduler.ts';
import type { Speculator } from '../../src/engine/speculate/speculator.ts';
import { DrawingExecutable, type DrawingOptions, FakeExecutable } from './fake-executable.ts';

export const VOCABULARY = 61;

/** How a request draws that says nothing else; its id is the seed. */
export const SAMPLING: SamplerSettings = {
  temperature: 1,
  topK: 20,
  topP: 0.95,
  minP: 0,
  repeatPenalty: 1.1,
  presencePenalty: 0.1,
  frequencyPenalty: 0.1,
  penaltyWindow: 64,
  logitBias: [],
  seed: 3,
};

export interface BenchOptions extends Partial<DrawingOptions> {
  readonly context?: number;
  readonly promptRows?: number;
  readonly speculator?: Speculator;
  /** In milliseconds; default: 1, 2, 3 … */
  now?(): number;
}

export interface AddOptions {
  readonly maxTokens?: number;
  readonly end?: readonly number[];
  readonly timeline?: Timeline;
  readonly sampling?: Partial<SamplerSettings>;
}

/** @param Runs what runs the steps */
export class SchedulerBench<Runs extends SchedulerOptions['executable']> {
  readonly executable: Runs;
  readonly pool: PagePool;
  readonly tokens = new Map<number, number[]>();
  readonly ends = new Map<number, unknown>();
  readonly scheduler: Scheduler;
  readonly #context: number;

  constructor(
    executable: Runs,
    options: Pick<SchedulerOptions, 'context' | 'promptRows' | 'vocabulary' | 'speculator'> &
      Partial<Pick<SchedulerOptions, 'now'>> & { readonly pages: number },
  ) {
    const { pages, ...rest } = options;
    this.executable = executable;
    this.pool = new PagePool(pages);
    this.#context = options.context;
    let clock = 0;
    this.scheduler = new Scheduler({
      now: () => ++clock,
      ...rest,
      executable,
      stepRows: MAX_STEP_ROWS,
      onToken: (request, token) => {
        const before = this.tokens.get(request.id);
        if (before === undefined) this.tokens.set(request.id, [token]);
        else before.push(token);
      },
      onFinish: (request, reason) => this.#end(request, reason),
      onError: (request, error) => this.#end(request, error),
    });
  }

  #end({ id }: Request, how: unknown): void {
    if (this.ends.has(id)) throw new Error(`request ${id} ends twice`);
    this.ends.set(id, how);
  }

  timeline(): Timeline {
    return new Timeline(this.pool, this.#context);
  }

  add(id: number, prompt: readonly number[], more: AddOptions = {}): Request {
    const settings = { ...SAMPLING, seed: id, ...more.sampling };
    const sampler = new Sampler(settings);
    sampler.observePrompt(prompt);
    const request = new Request({
      id,
      timeline: more.timeline ?? this.timeline(),
      prompt: Int32Array.from(prompt),
      settings,
      sampler,
      maxTokens: more.maxTokens ?? 40,
      endTokens: new Set(more.end ?? []),
    });
    this.scheduler.add(request);
    return request;
  }

  async turns(count: number): Promise<void> {
    for (let turn = 0; turn < count; turn++) await this.scheduler.turn();
  }

  async drain(): Promise<void> {
    while (this.scheduler.busy) await this.scheduler.turn();
    await this.scheduler.settle();
  }
}

function withDefaults({ context = 512, promptRows = 32, pages = 200, speculator, now, ...fake }: BenchOptions) {
  return {
    own: { context, promptRows, pages, vocabulary: VOCABULARY, speculator, ...(now === undefined ? {} : { now }) },
    fake: { pages, vocabulary: VOCABULARY, ...fake },
  };
}

/** One whose tokens the host draws. */
export function hostBench(options: BenchOptions = {}): SchedulerBench<FakeExecutable> {
  const { own, fake } = withDefaults(options);
  return new SchedulerBench(new FakeExecutable(fake), own);
}

/** One whose executable draws tokens itself. */
export function drawingBench(options: BenchOptions = {}): SchedulerBench<DrawingExecutable> {
  const { own, fake } = withDefaults(options);
  return new SchedulerBench(new DrawingExecutable(fake), own);
}

export const promptOf = (id: number, length: number) =>
  Array.from({ length }, (_, i) => (i * 7 + id * 13) % VOCABULARY);

/** What a request answers by itself, its tokens drawn by the host. */
export async function alone(
  id: number,
  prompt: readonly number[],
  more: number | AddOptions = 40,
  options: BenchOptions = {},
): Promise<readonly number[]> {
  const bench = hostBench(options);
  bench.add(id, prompt, typeof more === 'number' ? { maxTokens: more } : more);
  await bench.drain();
  return bench.tokens.get(id) ?? [];
}
