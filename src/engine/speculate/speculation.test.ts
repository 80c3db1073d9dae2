/**
 * Drafts never change what is said: whatever they are, however many requests there are, wherever tokens are drawn, each answer is
 * the one of plain decoding, token for token, and ends as it does.
 */

import assert from 'node:assert/strict';
import { suite, test } from 'node:test';
import {
  type AddOptions,
  alone,
  type BenchOptions,
  drawingBench,
  hostBench,
  promptOf,
  VOCABULARY,
} from '../../../test/support/scheduler-bench.ts';
import { PAGE_ROWS, type Step } from '../../backend/backend.ts';
import { MAX_STEP_ROWS } from '../../backend/kernel.ts';
import { type ConclaveError, NonFiniteError, OutOfMemoryError } from '../../errors.ts';
import type { Timeline } from '../kv-cache.ts';
import type { Request } from '../request.ts';
import { WINDOW_STEPS } from './gate.ts';
import type { DraftAsk, DraftSource } from './source.ts';
import { Speculator } from './speculator.ts';

/** Guesses by what each request will say, or not. */
class Scripted implements DraftSource {
  readonly asked: number[] = [];
  readonly #guess: (request: Request, most: number) => readonly number[];
  /** How many turns of the event loop drafts take. */
  readonly #turns: number;

  constructor(guess: (request: Request, most: number) => readonly number[], turns = 0) {
    this.#guess = guess;
    this.#turns = turns;
  }

  async propose(asks: readonly DraftAsk[]): Promise<readonly (readonly number[])[]> {
    for (let turn = 0; turn < this.#turns; turn++) await new Promise((done) => setImmediate(done));
    return asks.map(({ request, most }) => {
      // What is asked for has room, and all but the last token have been run.
      assert.equal(request.timeline.length, request.prompt.length + request.generated - 1);
      assert.ok(most >= 1 && request.timeline.pageTable.length * PAGE_ROWS >= request.timeline.length + 1 + most);
      this.asked.push(most);
      return this.#guess(request, most);
    });
  }
}

/** Answers of plain decoding, by request. */
async function plainAnswers(count: number, more: AddOptions, length = (id: number) => 1 + ((id * 11) % 90)) {
  const answers: (readonly number[])[] = [];
  for (let id = 0; id < count; id++) answers.push(await alone(id, promptOf(id, length(id)), more));
  return answers;
}

const rightFor = (answers: readonly (readonly number[])[]) => (request: Request, most: number) =>
  (answers[request.id] as readonly number[]).slice(request.generated, request.generated + most);
const wrong = (token: number | undefined) => ((token ?? 0) + 1) % VOCABULARY;

/** By name: what is guessed, given the right answers. */
const guesses: Readonly<
  Record<string, (answers: readonly (readonly number[])[]) => (request: Request, most: number) => readonly number[]>
> = {
  'all of them right': rightFor,
  'all of them wrong': (answers) => (request, most) => rightFor(answers)(request, most).map(wrong),
  'the first one right': (answers) => (request, most) =>
    rightFor(answers)(request, most).map((token, index) => (index === 0 ? token : wrong(token))),
  'now and then right, and fewer than were asked for': (answers) => (request, most) =>
    rightFor(answers)(request, (request.generated * 7 + request.id) % (most + 1)).map((token, index) =>
      (request.generated * 5 + index + request.id) % 3 === 0 ? wrong(token) : token,
    ),
  none: () => () => [],
};

function speculatorOf(
  source: DraftSource,
  drafts = 3,
  more: { gated?: boolean; onFault?: (error: ConclaveError) => void } = {},
) {
  return new Speculator({ source, drafts, gated: false, ...more });
}

for (const [where, bench] of [
  ['the host draws', hostBench],
  ['the device draws', drawingBench],
] as const) {
  suite(`drafts where ${where}`, () => {
    for (const [name, guess] of Object.entries(guesses)) {
      test(`${name}: every answer is that of plain decoding, alone and among others`, async () => {
        for (const count of [1, 5, 40, 100]) {
          const answers = await plainAnswers(count, { maxTokens: 40 });
          for (const drafts of count === 5 ? [1, 2, 3, 7] : [2]) {
            const speculator = speculatorOf(new Scripted(guess(answers), count % 3), drafts);
            const made = bench({ pages: 400, speculator });
            for (let id = 0; id < count; id++) made.add(id, promptOf(id, 1 + ((id * 11) % 90)), { maxTokens: 40 });
            await made.drain();
            for (let id = 0; id < count; id++) {
              assert.deepEqual(made.tokens.get(id), answers[id], `request ${id} of ${count}, ${drafts} drafts`);
              assert.equal(made.ends.get(id), 'length');
            }
            const steps = made.executable.runs.filter(({ mode }) => mode === 'step');
            assert.ok(steps.every(({ tokens }) => tokens.length <= MAX_STEP_ROWS));
          }
        }
      });
    }

    test('an end token ends the answer wherever it stands among drafts, and nothing after it is kept', async () => {
      const free = (await plainAnswers(1, { maxTokens: 40 }))[0] as readonly number[];
      for (let at = 0; at < 12; at++) {
        const end = free[at] as number;
        const expected = free.slice(0, free.indexOf(end) + 1);
        const speculator = speculatorOf(new Scripted(rightFor([free])));
        const made = bench({ speculator });
        const request = made.add(0, promptOf(0, 1), { maxTokens: 40, end: [end] });
        await made.drain();
        assert.deepEqual(made.tokens.get(0), expected);
        assert.equal(made.ends.get(0), 'stop');
        assert.equal(request.timeline.length, 1 + expected.length - 1);
      }
    });

    test('most tokens and the end of the context are kept to, with no row beyond', async () => {
      for (const [maxTokens, context] of [
        [1, 512],
        [2, 512],
        [3, 512],
        [6, 512],
        [100, 21],
        [100, 22],
        [100, 23],
        [100, PAGE_ROWS],
        [100, PAGE_ROWS + 1],
      ] as const) {
        const expected = await alone(0, promptOf(0, 17), { maxTokens }, { context });
        const source = new Scripted(rightFor([await alone(0, promptOf(0, 17), { maxTokens: 100 })]));
        const made = bench({ context, speculator: speculatorOf(source) });
        const request = made.add(0, promptOf(0, 17), { maxTokens });
        await made.drain();
        assert.deepEqual(made.tokens.get(0), expected, `${maxTokens} tokens in ${context}`);
        assert.equal(made.ends.get(0), 'length');
        const furthest = Math.max(...made.executable.runs.flatMap(({ positions }) => positions));
        assert.ok(furthest < context && furthest <= 17 + maxTokens - 2 + 0, `position ${furthest}`);
        assert.ok(request.timeline.length <= context);
      }
    });

    test('a request that is taken out leaves nothing behind, and the others go on', async () => {
      const answers = await plainAnswers(4, { maxTokens: 40 });
      for (let turns = 1; turns < 12; turns++) {
        const made = bench({ speculator: speculatorOf(new Scripted(rightFor(answers), 1)) });
        const requests = answers.map((_, id) => made.add(id, promptOf(id, 1 + ((id * 11) % 90)), { maxTokens: 40 }));
        await made.turns(turns);
        const removed = made.scheduler.remove(2);
        removed?.timeline.rewind(0);
        await made.drain();
        for (const id of [0, 1, 3]) assert.deepEqual(made.tokens.get(id), answers[id], `request ${id}, ${turns} turns`);
        for (const { timeline } of requests) timeline.rewind(0);
        assert.equal(made.pool.free, made.pool.total);
      }
    });

    test('no page is taken from anybody for a draft, and where plain decoding has room, so has this', async () => {
      const prompts = [promptOf(0, PAGE_ROWS - 3), promptOf(1, 2 * PAGE_ROWS - 2)];
      const answers = [
        await alone(0, prompts[0] as number[], { maxTokens: 3 }),
        await alone(1, prompts[1] as number[], { maxTokens: 2 }),
      ];
      const made = bench({ pages: 3, speculator: speculatorOf(new Scripted(rightFor(answers), 0), 7) });
      made.pool.onShortage = () => assert.fail('a page was asked for');
      made.add(0, prompts[0] as number[], { maxTokens: 3 });
      made.add(1, prompts[1] as number[], { maxTokens: 2 });
      await made.drain();
      assert.deepEqual([made.tokens.get(0), made.tokens.get(1)], answers);
    });

    test("who watches sees every row of every timeline before the next one, and no run is the device's alone", async () => {
      const answers = await plainAnswers(6, { maxTokens: 40 });
      const ends = new Map<Timeline, number>();
      let gaps = 0;
      const guess = guesses['the first one right']?.(answers) as (request: Request, most: number) => readonly number[];
      class Watching extends Scripted {
        async ran(step: Step, timelines: readonly Timeline[]): Promise<void> {
          for (const [row, position] of step.positions.entries()) {
            const timeline = timelines[step.sequences[row] as number] as Timeline;
            if (position > (ends.get(timeline) ?? 0)) gaps++;
            ends.set(timeline, position + 1);
          }
        }
      }
      const speculator = speculatorOf(new Watching(guess));
      assert.equal(speculator.watches, true);
      const made = bench({ pages: 400, promptRows: 16, speculator });
      const requests = answers.map((_, id) => made.add(id, promptOf(id, 1 + ((id * 11) % 90)), { maxTokens: 40 }));
      await made.drain();
      for (const [id, { timeline }] of requests.entries()) {
        assert.deepEqual(made.tokens.get(id), answers[id]);
        assert.ok((ends.get(timeline) ?? 0) >= timeline.length);
      }
      assert.equal(gaps, 0);
    });

    test('a session goes on: what the timeline holds after an answer is what was said', async () => {
      const answer = await alone(0, promptOf(0, 20), { maxTokens: 30 });
      const made = bench({ speculator: speculatorOf(new Scripted(rightFor([answer]))) });
      const request = made.add(0, promptOf(0, 20), { maxTokens: 30 });
      await made.drain();
      assert.equal(request.timeline.length, 20 + 30 - 1);
      const next = [...promptOf(0, 20), ...answer, 5, 6, 7];
      const expected = await alone(1, next, { maxTokens: 20 });
      made.add(1, next, { maxTokens: 20, timeline: request.timeline });
      await made.drain();
      assert.deepEqual(made.tokens.get(1), expected);
    });
  });
}

suite('what drafts are for', () => {
  test('right ones save steps: one for each 1 + N tokens', async () => {
    const answers = await plainAnswers(1, { maxTokens: 41 });
    for (const drafts of [1, 3, 7]) {
      const speculator = speculatorOf(new Scripted(rightFor(answers)), drafts);
      const made = hostBench({ speculator });
      made.add(0, promptOf(0, 1), { maxTokens: 41 });
      await made.drain();
      const steps = made.executable.runs.filter(({ mode }) => mode === 'step');
      assert.equal(steps.length, 40 / (1 + drafts));
      const { tokens, steps: counted, checked, accepted } = speculator.snapshot({ reset: true });
      assert.deepEqual([tokens, counted], [40, steps.length]);
      assert.deepEqual(checked, accepted);
      assert.equal(speculator.snapshot({ reset: false }).tokens, 0);
    }
  });

  test('rows are shared when there are many requests: fewer drafts each, then none', async () => {
    for (const [count, most] of [
      [8, 7],
      [16, 3],
      [20, 2],
      [32, 1],
      [33, 0],
    ] as const) {
      const source = new Scripted((_, drafts) => new Array<number>(drafts).fill(1));
      const made = hostBench({ pages: 400, speculator: speculatorOf(source, 7) });
      for (let id = 0; id < count; id++) made.add(id, promptOf(id, 1 + (id % 30)), { maxTokens: 200 });
      // All of them read their prompts first, so that they are together.
      while (made.scheduler.promptsWaiting) await made.scheduler.turn();
      source.asked.length = 0;
      made.executable.runs.length = 0;
      await made.scheduler.turn();
      assert.deepEqual(source.asked, most === 0 ? [] : new Array<number>(count).fill(most), `${count} requests`);
      assert.equal(made.executable.runs[0]?.tokens.length, count * (1 + most));
    }
  });
});

suite('faults', () => {
  test('of who drafts are told once, and answers are the same without', async () => {
    const answers = await plainAnswers(3, { maxTokens: 30 });
    for (const failsAt of [1, 4]) {
      let calls = 0;
      const faults: ConclaveError[] = [];
      const source = new Scripted((request, most) => {
        if (++calls >= failsAt) throw new NonFiniteError('layer 9: NaN');
        return rightFor(answers)(request, most);
      });
      const speculator = speculatorOf(source, 2, { onFault: (error) => faults.push(error) });
      const made = hostBench({ speculator });
      for (let id = 0; id < 3; id++) made.add(id, promptOf(id, 1 + ((id * 11) % 90)), { maxTokens: 30 });
      await made.drain();
      for (let id = 0; id < 3; id++) assert.deepEqual(made.tokens.get(id), answers[id]);
      assert.equal(faults.length, 1);
      assert.equal(faults[0]?.code, 'non_finite');
      assert.match(faults[0]?.message ?? '', /drafted no more.*layer 9: NaN/);
      assert.equal(speculator.snapshot({ reset: false }).drafting, false);
    }
  });

  test('that a drafted row alone brings are none: without drafts the answer is whole', async () => {
    const options: BenchOptions = {
      // No answer has the token: it is never drawn.
      poisons: (token, position) => token === 60 && position > 20,
    };
    const more: AddOptions = { maxTokens: 30, sampling: { logitBias: [[60, -Infinity]] } };
    const answers = [await alone(0, promptOf(0, 12), more), await alone(1, promptOf(1, 12), more)];
    const source = new Scripted((request, most) => [...rightFor(answers)(request, most).slice(0, -1), 60]);
    const made = hostBench({ ...options, speculator: speculatorOf(source, 2) });
    for (let id = 0; id < 2; id++) made.add(id, promptOf(id, 12), more);
    await made.drain();
    for (let id = 0; id < 2; id++) {
      assert.deepEqual(made.tokens.get(id), answers[id]);
      assert.equal(made.ends.get(id), 'length');
    }
  });

  test('of the model end the request as they do without drafts, at the same step', async () => {
    const poisons = (_: number, position: number) => position === 30;
    const plain = hostBench({ poisons });
    plain.add(0, promptOf(0, 12), { maxTokens: 40 });
    await plain.drain();
    const free = await alone(0, promptOf(0, 12), { maxTokens: 40 });
    const made = hostBench({ poisons, speculator: speculatorOf(new Scripted(rightFor([free]))) });
    made.add(0, promptOf(0, 12), { maxTokens: 40 });
    await made.drain();
    assert.deepEqual(made.tokens.get(0), plain.tokens.get(0));
    const [error, expected] = [made.ends.get(0), plain.ends.get(0)];
    assert.ok(error instanceof NonFiniteError && expected instanceof NonFiniteError);
    assert.equal(error.message, expected.message);
  });

  test('too few pages end a request as they do without drafts', async () => {
    const made = hostBench({ pages: 1, speculator: speculatorOf(new Scripted(() => [1, 2, 3])) });
    made.add(0, promptOf(0, PAGE_ROWS - 4), { maxTokens: 40 });
    await made.drain();
    assert.ok(made.ends.get(0) instanceof OutOfMemoryError);
    assert.equal(made.tokens.get(0)?.length, 5);
  });
});

suite('the gate', () => {
  for (const [where, bench] of [
    ['host', hostBench],
    ['device', drawingBench],
  ] as const) {
    test(`stops drafts that cost more than they bring, and tries them again; the answer stays the same (${where})`, async () => {
      let clock = 0;
      const answer = await alone(0, promptOf(0, 8), { maxTokens: 450 });
      let drafts = 0;
      // A step with drafts takes ten times as long.
      const source = new Scripted((request, most) => {
        clock += 9;
        drafts++;
        return rightFor([answer])(request, most).map(wrong);
      });
      const speculator = new Speculator({ source, drafts: 2 });
      const onRun = () => void clock++;
      const made = bench({ speculator, now: () => clock, onRun });
      made.add(0, promptOf(0, 8), { maxTokens: 450 });
      await made.drain();
      assert.deepEqual(made.tokens.get(0), answer);
      assert.ok(drafts >= 2 * WINDOW_STEPS && drafts <= 5 * WINDOW_STEPS, `${drafts} steps of 449 drafted`);
      const { tokensPerSecond, plainSteps, drafting } = speculator.snapshot({ reset: false });
      assert.equal(drafting, false);
      assert.ok(plainSteps > 300 || where === 'device');
      assert.ok((tokensPerSecond.plain ?? 0) > (tokensPerSecond.drafting ?? Infinity));
    });

    test(`keeps drafts that pay (${where})`, async () => {
      let clock = 0;
      const answer = await alone(0, promptOf(0, 8), { maxTokens: 450 });
      const source = new Scripted(rightFor([answer]));
      const speculator = new Speculator({ source, drafts: 2 });
      const made = bench({ speculator, now: () => clock, onRun: () => void clock++ });
      made.add(0, promptOf(0, 8), { maxTokens: 450 });
      await made.drain();
      assert.deepEqual(made.tokens.get(0), answer);
      const { tokensPerSecond, steps, plainSteps } = speculator.snapshot({ reset: false });
      assert.ok(steps > 100 && plainSteps <= 3 * WINDOW_STEPS, `${steps} steps with drafts, ${plainSteps} without`);
      assert.ok((tokensPerSecond.drafting ?? 0) > (tokensPerSecond.plain ?? Infinity));
    });
  }
});
