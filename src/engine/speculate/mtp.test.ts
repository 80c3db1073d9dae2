/** What the head that predicts further ahead is fed: every row of a timeline once, in order, with the token that came after it. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SAMPLING } from '../../../test/support/scheduler-bench.ts';
import type { MtpRunner, Step } from '../../backend/backend.ts';
import { PagePool, Timeline } from '../kv-cache.ts';
import { Request } from '../request.ts';
import { Sampler } from '../sampler.ts';
import { MtpDrafts } from './mtp.ts';
import { stepOver } from './source.ts';

const VOCABULARY = 50;
const WIDTH = 3;

/** A row that says where it is from: its position, and its token. */
const rowOf = (position: number, token: number) => [position, token, position * token];

/** One that keeps what it is fed, and drafts the token after the one that it was given. */
class FakeRunner implements MtpRunner {
  readonly fed: { position: number; token: number; from: readonly number[]; mode: string }[] = [];
  rows = 0;
  #given = new Float32Array(0);

  ran(step: Step): void {
    this.#given = Float32Array.from(
      Array.from(step.tokens).flatMap((token, row) => rowOf(step.positions[row]!, token)),
    );
  }

  given(): Float32Array {
    return this.#given;
  }

  async run({ mode, tokens, positions, wanted, incoming }: Step) {
    assert.equal(incoming?.length, tokens.length * WIDTH);
    this.rows = Math.max(this.rows, tokens.length);
    tokens.forEach((token, row) => {
      const from = [...(incoming?.subarray(row * WIDTH, (row + 1) * WIDTH) ?? [])];
      this.fed.push({ position: positions[row]!, token, from, mode });
    });
    const logits = new Float32Array(wanted.length * VOCABULARY);
    wanted.forEach((row, at) => {
      logits[at * VOCABULARY + ((tokens[row]! + 1) % VOCABULARY)] = 1;
    });
    // What it made up itself says so.
    return { logits, hidden: new Float32Array(tokens.length * WIDTH).fill(-1) };
  }
}

interface World {
  readonly runner: FakeRunner;
  readonly drafts: MtpDrafts;
  readonly request: Request;
  /** The model runs so many of the request's tokens more, and rows of drafts behind them. */
  run(mode: 'prompt' | 'step', rows: number, drafted?: readonly number[]): Promise<void>;
  propose(most: number): Promise<readonly number[]>;
}

function world(prompt: readonly number[], promptRows = 512): World {
  const runner = new FakeRunner();
  const drafts = new MtpDrafts({ runner, vocabulary: VOCABULARY, stepRows: 64, promptRows });
  const timeline = new Timeline(new PagePool(20), 1280);
  const sampler = new Sampler(SAMPLING);
  const tokens = Int32Array.from(prompt);
  const request = new Request({
    id: 0,
    timeline,
    prompt: tokens,
    settings: SAMPLING,
    sampler,
    maxTokens: 99,
    endTokens: new Set(),
  });
  return {
    runner,
    drafts,
    request,
    async run(mode, rows, drafted = []) {
      const first = timeline.length;
      timeline.reserve(rows + drafted.length);
      const own = [...request.prompt, ...request.answer].slice(first, first + rows);
      const step = stepOver(mode, [{ pageTable: timeline.pageTable, first, tokens: [...own, ...drafted] }]);
      timeline.advance(rows, mode);
      runner.ran(step);
      await drafts.ran(step, [timeline]);
    },
    async propose(most) {
      timeline.reserve(1 + most);
      return (await drafts.propose([{ request, most }]))[0] ?? [];
    },
  };
}

/** The rows that were fed from the model's own, in the order of their positions: each once, from the right row. */
function checkFed({ runner, request }: World, upTo: number): void {
  const all = [...request.prompt, ...request.answer];
  const own = runner.fed.filter(({ from }) => from[0] !== -1);
  assert.deepEqual(
    own.map(({ position, token, from }) => ({ position, token, from })),
    Array.from({ length: upTo }, (_, position) => ({
      position,
      token: all[position + 1],
      from: rowOf(position, all[position] as number),
    })),
  );
}

const promptOf = (length: number) => Array.from({ length }, (_, index) => (index * 7 + 3) % VOCABULARY);

test('a short prompt waits until its first token is known; a long one is fed at once, but for its last row', async () => {
  for (const [length, promptRows, chunk] of [
    [5, 512, 512],
    [33, 512, 512],
    [34, 512, 512],
    [300, 512, 512],
    [300, 100, 100],
    [300, 7, 41],
    [700, 64, 64],
  ] as const) {
    const made = world(promptOf(length), promptRows);
    for (let first = 0; first < length; first += chunk) {
      await made.run('prompt', Math.min(chunk, length - first));
    }
    const waiting = length - made.runner.fed.length;
    assert.ok(waiting >= 1 && waiting <= 32, `${waiting} of ${length} rows wait`);
    made.request.answer.push(9);
    assert.deepEqual(await made.propose(2), [10, 11]);
    checkFed(made, length);
    assert.ok(made.runner.rows <= Math.max(promptRows, 32));
  }
});

test('after a step with drafts only the rows that came true are fed, and drafts go on from the last of them', async () => {
  const made = world(promptOf(6));
  await made.run('prompt', 6);
  let length = 6;
  made.request.answer.push(9);
  for (const accepted of [2, 0, 1, 2, 0]) {
    const drafted = await made.propose(2);
    assert.deepEqual(
      drafted,
      [1, 2].map((ahead) => ((made.request.answer.at(-1) as number) + ahead) % VOCABULARY),
    );
    checkFed(made, length);
    await made.run('step', 1, drafted);
    made.request.answer.push(...drafted.slice(0, accepted), (length * 3) % VOCABULARY);
    made.request.timeline.advance(accepted, 'step');
    length += 1 + accepted;
  }
  await made.propose(1);
  checkFed(made, length);
});

test('rows that nobody asks about wait, are fed together, and nothing is missing when drafts are asked for again', async () => {
  const made = world(promptOf(4));
  await made.run('prompt', 4);
  for (let step = 0; step < 200; step++) {
    made.request.answer.push((step * 5) % VOCABULARY);
    await made.run('step', 1);
  }
  assert.ok(made.runner.fed.length >= 204 - 33 && made.runner.fed.every(({ mode }) => mode === 'prompt'));
  made.request.answer.push(1);
  assert.deepEqual(await made.propose(3), [2, 3, 4]);
  checkFed(made, 204);
});

test('a session that goes on feeds the last row of its answer with the token that then came', async () => {
  const made = world(promptOf(4));
  await made.run('prompt', 4);
  made.request.answer.push(8, 9);
  await made.run('step', 1);
  // The next prompt begins with what the timeline holds.
  await made.run('step', 1);
  made.request.answer.push(7);
  await made.propose(1);
  checkFed(made, 6);
});

test('after rows that were never seen there is nothing to go on from, until the next run', async () => {
  const made = world(promptOf(4));
  await made.run('prompt', 4);
  made.request.answer.push(8, 9);
  made.request.timeline.reserve(1);
  made.request.timeline.advance(1, 'step');
  assert.deepEqual(await made.propose(2), []);
  await made.run('step', 1);
  made.request.answer.push(20);
  assert.deepEqual(await made.propose(2), [21, 22]);
  assert.deepEqual(made.runner.fed[0], { position: 5, token: 20, from: rowOf(5, 9), mode: 'step' });
});
