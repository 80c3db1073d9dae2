/** Where the device draws tokens, runs are sent ahead of them: nothing of that may be seen in what requests get. */

import assert from 'node:assert/strict';
import { suite, test } from 'node:test';
import {
  type AddOptions,
  alone,
  type BenchOptions,
  drawingBench,
  hostBench,
  promptOf,
} from '../../test/support/scheduler-bench.ts';
import { uniform } from '../backend/random.ts';
import { DeviceLostError, NonFiniteError, OutOfMemoryError } from '../errors.ts';

/** Tokens come at once, late, or out of pace. */
const paces: Readonly<Record<string, (run: number) => number>> = {
  'at once': () => 0,
  late: () => 3,
  'out of pace': (run) => Math.floor(uniform(1, run) * 7),
};

const kinds: readonly AddOptions['sampling'][] = [
  { temperature: 0, repeatPenalty: 1, presencePenalty: 0, frequencyPenalty: 0 },
  {},
  { repeatPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, topK: 0, topP: 1 },
  // Not to be drawn on the device.
  { logitBias: [[5, -1]] },
];

const refuses: BenchOptions['refuses'] = ({ logitBias }) => logitBias.length > 0;

for (const [pace, late] of Object.entries(paces)) {
  for (const slots of [64, 3]) {
    test(`tokens that come ${pace}, drawn in ${slots} slots, are those of the host`, async () => {
      const bench = drawingBench({ late, slots, refuses });
      const asked = Array.from({ length: 24 }, (_, id) => ({
        prompt: promptOf(id, 1 + ((id * 11) % 90)),
        more: { maxTokens: 20 + ((id * 17) % 60), sampling: kinds[id % kinds.length] },
      }));
      for (const [id, { prompt, more }] of asked.entries()) {
        bench.add(id, prompt, more);
        await bench.turns(id % 4);
      }
      await bench.drain();
      for (const [id, { prompt, more }] of asked.entries()) {
        assert.deepEqual(bench.tokens.get(id), await alone(id, prompt, more), `request ${id}`);
        assert.equal(bench.ends.get(id), 'length');
      }
      assert.ok(bench.executable.unseen > 100, `${bench.executable.unseen} rows were sent ahead of their tokens`);
    });
  }
}

test('a step is sent before the token that it runs has come, and no more than three are on their way', async () => {
  const bench = drawingBench({ late: () => 2 });
  bench.add(0, promptOf(0, 40), { maxTokens: 30 });
  await bench.drain();
  const { executable } = bench;
  assert.equal(executable.mostOnTheirWay, 3);
  assert.equal(executable.unseen, 29);
  // Two chunks and 29 steps: the length is known, so nothing is sent in vain.
  assert.equal(executable.runs.length, 31);
  assert.deepEqual(bench.tokens.get(0), await alone(0, promptOf(0, 40), 30));
});

test('a request that the device does not draw for does not hold up one that it does', async () => {
  const bench = drawingBench({ refuses, slots: 4 });
  bench.add(0, promptOf(0, 5), { maxTokens: 300, sampling: kinds[3] });
  bench.add(1, promptOf(1, 5), { maxTokens: 40 });
  await bench.drain();
  assert.ok(bench.executable.unseen >= 30);
  assert.deepEqual(bench.tokens.get(0), await alone(0, promptOf(0, 5), { maxTokens: 300, sampling: kinds[3] }));
  assert.deepEqual(bench.tokens.get(1), await alone(1, promptOf(1, 5)));
});

test('a request that found no slot gets one when it is free', async () => {
  const bench = drawingBench({ slots: 1 });
  bench.add(0, promptOf(0, 5), { maxTokens: 20 });
  bench.add(1, promptOf(1, 5), { maxTokens: 200 });
  await bench.drain();
  assert.ok(bench.executable.unseen > 100);
  for (const [id, maxTokens] of [20, 200].entries())
    assert.deepEqual(bench.tokens.get(id), await alone(id, promptOf(id, 5), maxTokens));
});

suite('ends', () => {
  test('what ran past an end token is dropped, and the timeline goes on from there', async () => {
    const prompt = promptOf(0, 20);
    const free = await alone(0, prompt);
    const end = free[10] as number;
    const bench = drawingBench({ late: () => 1 });
    const request = bench.add(0, prompt, { end: [end] });
    bench.add(1, promptOf(1, 33));
    await bench.drain();
    const answer = free.slice(0, free.indexOf(end) + 1);
    assert.deepEqual(bench.tokens.get(0), answer);
    assert.equal(bench.ends.get(0), 'stop');
    assert.equal(request.timeline.length, prompt.length + answer.length - 1);
    assert.equal(request.timeline.promptRows, prompt.length);
    const next = [...prompt, ...answer, 3, 1, 4];
    const { reusedRows } = bench.add(2, next, { timeline: request.timeline });
    await bench.drain();
    assert.equal(reusedRows, prompt.length + answer.length - 1);
    assert.deepEqual(bench.tokens.get(2), await alone(2, next));
    assert.deepEqual(bench.tokens.get(1), await alone(1, promptOf(1, 33)));
  });

  test('an end at every place of an answer', async () => {
    const prompt = promptOf(3, 62);
    const free = await alone(3, prompt, 12);
    for (const [index, end] of free.entries()) {
      const bench = drawingBench({ late: () => index % 3 });
      const request = bench.add(3, prompt, { maxTokens: 12, end: [end] });
      await bench.drain();
      const answer = free.slice(0, free.indexOf(end) + 1);
      assert.deepEqual(bench.tokens.get(3), answer);
      assert.equal(bench.ends.get(3), 'stop');
      assert.equal(request.timeline.length, prompt.length + answer.length - 1);
      // Pages that nobody needs are given back.
      assert.equal(bench.pool.free, bench.pool.total - Math.ceil(request.timeline.length / 64));
    }
  });

  test('a full context ends with length, and nothing runs beyond it', async () => {
    const bench = drawingBench({ context: 70, late: () => 2 });
    bench.add(0, promptOf(0, 50), { maxTokens: Infinity });
    bench.add(1, promptOf(1, 69), { maxTokens: Infinity });
    await bench.drain();
    assert.equal(bench.tokens.get(0)?.length, 20);
    assert.equal(bench.tokens.get(1)?.length, 1);
    assert.deepEqual([bench.ends.get(0), bench.ends.get(1)], ['length', 'length']);
    assert.equal(Math.max(...bench.executable.runs.flatMap(({ positions }) => positions)), 68);
  });

  test('no tokens asked for: the prompt is read, nothing is drawn', async () => {
    const bench = drawingBench({ late: () => 1 });
    const request = bench.add(0, promptOf(0, 40), { maxTokens: 0 });
    await bench.drain();
    assert.equal(bench.ends.get(0), 'length');
    assert.equal(bench.tokens.has(0), false);
    assert.equal(request.timeline.length, 40);
    assert.equal(request.firstTokenAt > request.startedAt, true);
  });

  test('a request that is taken out leaves the others as they were, and its pages and slot to the next', async () => {
    for (let turns = 1; turns < 16; turns++) {
      const bench = drawingBench({ late: () => 2, slots: 3, pages: 6, context: 128 });
      for (let id = 0; id < 3; id++) bench.add(id, promptOf(id, 10 + 50 * (id % 2)));
      await bench.turns(turns);
      const removed = bench.scheduler.remove(1);
      assert.equal(removed?.id, 1);
      const told = bench.tokens.get(1)?.length ?? 0;
      removed.timeline.rewind(0);
      assert.equal(bench.scheduler.remove(1), undefined);
      bench.add(3, promptOf(3, 61), { timeline: removed.timeline });
      await bench.drain();
      for (const id of [0, 2, 3]) {
        const length = id === 3 ? 61 : 10;
        assert.deepEqual(bench.tokens.get(id), await alone(id, promptOf(id, length)), `request ${id}, ${turns} turns`);
      }
      assert.equal(bench.ends.has(1), false);
      assert.equal(bench.tokens.get(1)?.length ?? 0, told);
    }
  });

  test('afterwards nothing is on its way, and every page of what is rewound is free', async () => {
    const bench = drawingBench({ late: paces['out of pace'] });
    const requests = Array.from({ length: 12 }, (_, id) => bench.add(id, promptOf(id, 5 + 9 * id), { end: [id] }));
    await bench.turns(20);
    await bench.scheduler.settle();
    assert.equal(bench.executable.onTheirWay, 0);
    await bench.drain();
    for (const { timeline } of requests) timeline.rewind(0);
    assert.equal(bench.pool.free, bench.pool.total);
  });
});

suite('faults', () => {
  test('logits that are not finite fail their request alone, with what the host says of them', async () => {
    const reference = await alone(1, promptOf(1, 10));
    const ends: unknown[] = [];
    for (const make of [hostBench, drawingBench]) {
      for (const place of [0, 1, 7]) {
        // The row that the token at `place` is drawn from.
        const token = place === 0 ? promptOf(1, 10)[9] : reference[place - 1];
        const poisons = (found: number, position: number) => found === token && position === 9 + place;
        const bench = make({ poisons, late: () => 1 });
        const requests = Array.from({ length: 4 }, (_, id) =>
          bench.add(id, promptOf(id, id === 1 ? 10 : 10 + 20 * (id + 1))),
        );
        await bench.drain();
        const error = bench.ends.get(1);
        assert.ok(error instanceof NonFiniteError);
        ends.push(error.message);
        assert.deepEqual(bench.tokens.get(1) ?? [], reference.slice(0, place));
        assert.equal(requests[1]?.timeline.length, place === 0 ? 0 : 9 + place);
        for (const id of [0, 2, 3])
          assert.deepEqual(bench.tokens.get(id), await alone(id, promptOf(id, 10 + 20 * (id + 1))));
      }
    }
    assert.deepEqual(ends.slice(0, 3), [
      'step 0, prompt positions 0 to 9: layer 3: NaN',
      'step 1, position 10: layer 3: NaN',
      'step 7, position 16: layer 3: NaN',
    ]);
    assert.deepEqual(ends.slice(3), ends.slice(0, 3));
  });

  test('a fault of a row that has been taken out is nobody’s', async () => {
    const reference = await alone(0, promptOf(0, 10));
    const bench = drawingBench({
      late: () => 4,
      poisons: (token, position) => token === reference[3] && position === 13,
    });
    bench.add(0, promptOf(0, 10));
    bench.add(1, promptOf(1, 30));
    while ((bench.tokens.get(0)?.length ?? 0) < 3) await bench.scheduler.turn();
    bench.scheduler.remove(0);
    await bench.drain();
    assert.equal(bench.ends.has(0), false);
    assert.deepEqual(bench.tokens.get(1), await alone(1, promptOf(1, 30)));
  });

  test('a lost device is told to each request, once, whatever was sent after', async () => {
    for (let lostAt = 0; lostAt < 12; lostAt++) {
      let runs = 0;
      const lost = new DeviceLostError('gone');
      const bench = drawingBench({
        late: () => 2,
        refuses,
        onRun: () => {
          if (runs++ >= lostAt) throw lost;
        },
      });
      for (let id = 0; id < 4; id++) bench.add(id, promptOf(id, 8 + 30 * id), { sampling: kinds[id] });
      await bench.drain();
      assert.deepEqual([...bench.ends.values()], [lost, lost, lost, lost]);
      for (const [id, tokens] of bench.tokens) {
        const expected = await alone(id, promptOf(id, 8 + 30 * id), { sampling: kinds[id] });
        assert.deepEqual(tokens, expected.slice(0, tokens.length));
      }
    }
  });

  test('a full cache fails the request that finds no page, the others go on', async () => {
    const bench = drawingBench({ pages: 3, late: () => 2 });
    bench.add(0, promptOf(0, 60), { maxTokens: 60 });
    bench.add(1, promptOf(1, 60), { maxTokens: 60 });
    await bench.drain();
    const failed = [0, 1].filter((id) => bench.ends.get(id) instanceof OutOfMemoryError);
    assert.deepEqual(failed, [1]);
    assert.deepEqual(bench.tokens.get(0), await alone(0, promptOf(0, 60), 60));
    assert.deepEqual(bench.tokens.get(1), (await alone(1, promptOf(1, 60), 60)).slice(0, 5));
  });

  test('a full cache waits for an end that is on its way before it fails anybody', async () => {
    const [first, second] = [await alone(0, promptOf(0, 60), 60), await alone(2, promptOf(2, 60), 60)];
    // The second ends where it would need a page: its end has not come when it is to go on.
    const end = second[4] as number;
    assert.ok(!second.slice(0, 4).includes(end));
    const bench = drawingBench({ pages: 3, late: () => 3 });
    bench.add(0, promptOf(0, 60), { maxTokens: 60 });
    bench.add(2, promptOf(2, 60), { maxTokens: 60, end: [end] });
    await bench.drain();
    assert.deepEqual(bench.tokens.get(0), first);
    assert.deepEqual(bench.tokens.get(2), second.slice(0, 5));
    assert.deepEqual([bench.ends.get(0), bench.ends.get(2)], ['length', 'stop']);
  });
});

test('ten thousand steps leave nothing behind', async () => {
  const bench = drawingBench({ context: 2 ** 14, pages: 256, late: (run) => (run % 100 === 0 ? 1 : 0) });
  const sampling = { temperature: 0, repeatPenalty: 1, presencePenalty: 0, frequencyPenalty: 0 };
  const request = bench.add(0, promptOf(0, 5), { maxTokens: 10_000, sampling });
  await bench.drain();
  assert.equal(bench.tokens.get(0)?.length, 10_000);
  assert.equal(bench.executable.mostOnTheirWay, 3);
  assert.equal(bench.executable.onTheirWay, 0);
  assert.equal(bench.scheduler.busy, false);
  request.timeline.rewind(0);
  assert.equal(bench.pool.free, bench.pool.total);
});
