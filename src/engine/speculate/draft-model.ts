/**
 * Drafts by a smaller model of the same vocabulary, which lies beside the other one and has a cache of its own. Its timelines
 * follow those of the requests: what they have in common stays, the rest is read when drafts are wanted.
 */

import type { Executable } from '../../backend/backend.ts';
import { ConclaveError } from '../../errors.ts';
import type { Plan } from '../../plan/plan.ts';
import { PagePool, Timeline } from '../kv-cache.ts';
import type { Request } from '../request.ts';
import { type DraftAsk, type DraftRows, type DraftSource, draftChain, inRuns, stepOver } from './source.ts';

/** More rows than this that a timeline lacks are read as a prompt. */
const MOST_STEP_ROWS = 8;

export interface DraftModelOptions {
  readonly executable: Executable;
  readonly plan: Pick<Plan, 'context' | 'cache' | 'maxRows'>;
  readonly vocabulary: number;
}

interface Followed {
  readonly timeline: Timeline;
  /** Of the timeline's rows. */
  readonly tokens: number[];
}

type Ready = DraftAsk & { readonly index: number; readonly rows: DraftRows; readonly followed: Followed };

export class ModelDrafts implements DraftSource {
  readonly #executable: Executable;
  readonly #plan: DraftModelOptions['plan'];
  readonly #vocabulary: number;
  readonly #pool: PagePool;
  /** By the timeline that each follows, those first that have rested longest. */
  readonly #followed = new Map<Timeline, Followed>();
  /** Those that drafts are being made for. */
  readonly #inUse = new Set<Timeline>();

  constructor({ executable, plan, vocabulary }: DraftModelOptions) {
    this.#executable = executable;
    this.#plan = plan;
    this.#vocabulary = vocabulary;
    this.#pool = new PagePool(plan.cache.pages);
    this.#pool.onShortage = (needed) => this.#reclaim(needed);
  }

  async propose(asks: readonly DraftAsk[]): Promise<readonly (readonly number[])[]> {
    const drafts: (readonly number[])[] = asks.map(() => []);
    try {
      const ready: Ready[] = [];
      for (const [index, ask] of asks.entries()) {
        const made = await this.#ready(ask, index);
        if (made !== undefined) ready.push(made);
      }
      for (const run of inRuns(ready, ({ rows }) => rows.tokens.length, this.#plan.maxRows.step)) {
        const rows = run.map((each) => each.rows);
        const made = await draftChain(rows, this.#vocabulary, (step) => this.#executable.run(step));
        for (const [at, { index, followed, rows }] of run.entries()) {
          const own = made[at] as number[];
          drafts[index] = own;
          // The last draft is not run.
          const ran = [...Array.from(rows.tokens), ...own.slice(0, -1)];
          followed.tokens.push(...ran);
          followed.timeline.advance(ran.length, 'step');
        }
      }
    } finally {
      this.#inUse.clear();
    }
    return drafts;
  }

  dispose(): Promise<void> {
    return this.#executable.dispose();
  }

  /** The rows that the request's timeline lacks, but for many of them, which are read; undefined where it has no room. */
  async #ready({ request, most }: DraftAsk, index: number): Promise<Ready | undefined> {
    const length = request.prompt.length + request.answer.length;
    if (length + most - 1 > this.#plan.context) return undefined;
    const followed = this.#follow(request, length);
    const { timeline, tokens } = followed;
    try {
      timeline.reserve(length + most - 1 - timeline.length);
    } catch (error) {
      // Out of pages: then nothing is drafted.
      if (error instanceof ConclaveError) return undefined;
      throw error;
    }
    while (length - tokens.length > MOST_STEP_ROWS) {
      const rows = Math.min(length - tokens.length - 1, this.#plan.maxRows.prompt);
      const chunk = tokensOf(request, tokens.length, tokens.length + rows);
      const { pageTable } = timeline;
      const step = stepOver('prompt', [{ pageTable, first: tokens.length, tokens: chunk }]);
      await this.#executable.run({ ...step, wanted: new Int32Array(0) });
      for (const token of chunk) tokens.push(token);
      timeline.advance(rows, 'prompt');
    }
    const missing = tokensOf(request, tokens.length, length);
    const rows = { pageTable: timeline.pageTable, first: tokens.length, tokens: missing, most };
    return { request, most, index, rows, followed };
  }

  /** What follows the request's timeline, back where both have the same tokens; at least the last one is to be run. */
  #follow(request: Request, length: number): Followed {
    const key = request.timeline;
    let followed = this.#followed.get(key);
    if (followed === undefined) followed = { timeline: new Timeline(this.#pool, this.#plan.context), tokens: [] };
    // In order of use.
    this.#followed.delete(key);
    this.#followed.set(key, followed);
    this.#inUse.add(followed.timeline);
    const { timeline, tokens } = followed;
    // Its pages may have been wanted elsewhere.
    let same = 0;
    const most = Math.min(tokens.length, timeline.length, length - 1);
    while (same < most && tokens[same] === tokenAt(request, same)) same++;
    tokens.length = same;
    timeline.rewind(same);
    return followed;
  }

  #reclaim(needed: number): void {
    for (const [key, { timeline }] of this.#followed) {
      if (this.#pool.free >= needed) return;
      if (this.#inUse.has(timeline)) continue;
      timeline.rewind(0);
      this.#followed.delete(key);
    }
  }
}

function tokenAt({ prompt, answer }: Request, position: number): number {
  return (position < prompt.length ? prompt[position] : answer[position - prompt.length]) as number;
}

function tokensOf(request: Request, first: number, end: number): Int32Array {
  return Int32Array.from({ length: end - first }, (_, index) => tokenAt(request, first + index));
}
