import assert from 'node:assert/strict';
import { suite, test } from 'node:test';
import { alone, hostBench, promptOf } from '../../test/support/scheduler-bench.ts';
import { MAX_STEP_ROWS } from '../backend/kernel.ts';
import { NonFiniteError, OutOfMemoryError } from '../errors.ts';

test('an answer alone is the same among a hundred others', async () => {
  const bench = hostBench({ pages: 400 });
  const prompts = Array.from({ length: 100 }, (_, id) => promptOf(id, 1 + ((id * 11) % 90)));
  for (const [id, prompt] of prompts.entries()) bench.add(id, prompt, { maxTokens: 150 });
  await bench.drain();
  for (const [id, prompt] of prompts.entries()) {
    assert.deepEqual(bench.tokens.get(id), await alone(id, prompt, 150), `request ${id}`);
    assert.equal(bench.ends.get(id), 'length');
  }
  const steps = bench.executable.runs.filter(({ mode }) => mode === 'step');
  assert.equal(Math.max(...steps.map(({ tokens }) => tokens.length)), MAX_STEP_ROWS);
});

test('a request that comes later does not change one in work, nor the other way round', async () => {
  const bench = hostBench();
  bench.add(0, promptOf(0, 40));
  for (let turn = 0; turn < 9; turn++) await bench.scheduler.turn();
  bench.add(1, promptOf(1, 100));
  await bench.drain();
  assert.deepEqual(bench.tokens.get(0), await alone(0, promptOf(0, 40)));
  assert.deepEqual(bench.tokens.get(1), await alone(1, promptOf(1, 100)));
});

suite('runs', () => {
  test('a prompt goes in chunks, all of them prompt rows, even a last single row', async () => {
    const bench = hostBench({ promptRows: 32 });
    bench.add(0, promptOf(0, 65), { maxTokens: 3 });
    await bench.drain();
    assert.deepEqual(
      bench.executable.runs.map(({ mode, tokens }) => [mode, tokens.length]),
      [
        ['prompt', 32],
        ['prompt', 32],
        ['prompt', 1],
        ['step', 1],
        ['step', 1],
      ],
    );
    assert.deepEqual(
      bench.executable.runs.flatMap(({ positions }) => positions),
      Array.from({ length: 67 }, (_, i) => i),
    );
  });

  test('chunks of a long prompt and steps of the others take turns', async () => {
    const bench = hostBench({ promptRows: 8 });
    bench.add(0, promptOf(0, 4));
    await bench.scheduler.turn();
    bench.add(1, promptOf(1, 80));
    for (let turn = 0; turn < 8; turn++) await bench.scheduler.turn();
    const modes = bench.executable.runs.map(({ mode }) => mode).slice(1);
    assert.deepEqual(modes, ['step', 'prompt', 'step', 'prompt', 'step', 'prompt', 'step', 'prompt']);
  });

  test('more than 64 requests share the steps fairly', async () => {
    const bench = hostBench({ pages: 400 });
    for (let id = 0; id < 100; id++) bench.add(id, promptOf(id, 3), { maxTokens: 200 });
    for (let turn = 0; turn < 400; turn++) await bench.scheduler.turn();
    const counts = Array.from({ length: 100 }, (_, id) => bench.tokens.get(id)?.length ?? 0);
    assert.ok(Math.min(...counts.slice(0, 90)) > 50, counts.join(' '));
  });
});

suite('ends', () => {
  test('an end token ends with stop and is told', async () => {
    const free = await alone(0, promptOf(0, 20));
    const end = free[10]!;
    const bench = hostBench();
    bench.add(0, promptOf(0, 20), { end: [end] });
    await bench.drain();
    assert.deepEqual(bench.tokens.get(0), free.slice(0, free.indexOf(end) + 1));
    assert.equal(bench.ends.get(0), 'stop');
  });

  test('a full context ends with length: prompt and answer fill it', async () => {
    const bench = hostBench({ context: 70 });
    bench.add(0, promptOf(0, 50), { maxTokens: Infinity });
    bench.add(1, promptOf(1, 69), { maxTokens: Infinity });
    await bench.drain();
    assert.equal(bench.tokens.get(0)?.length, 20);
    assert.equal(bench.tokens.get(1)?.length, 1);
    assert.equal(bench.ends.get(0), 'length');
  });

  test('no tokens asked for: the prompt is read, nothing is drawn', async () => {
    const bench = hostBench();
    const request = bench.add(0, promptOf(0, 40), { maxTokens: 0 });
    await bench.drain();
    assert.equal(bench.ends.get(0), 'length');
    assert.equal(bench.tokens.has(0), false);
    assert.equal(request.timeline.length, 40);
  });

  test('a request that is taken out leaves the others as they were', async () => {
    const bench = hostBench();
    for (let id = 0; id < 3; id++) bench.add(id, promptOf(id, 10));
    for (let turn = 0; turn < 12; turn++) await bench.scheduler.turn();
    const removed = bench.scheduler.remove(1);
    removed?.timeline.rewind(0);
    assert.equal(bench.scheduler.remove(1), undefined);
    await bench.drain();
    assert.deepEqual(bench.tokens.get(0), await alone(0, promptOf(0, 10)));
    assert.deepEqual(bench.tokens.get(2), await alone(2, promptOf(2, 10)));
    assert.equal(bench.ends.has(1), false);
  });
});

suite('faults', () => {
  test('a value that is not finite fails the request it belongs to, and says at which step', async () => {
    const reference = await alone(1, promptOf(1, 10));
    // Tokens of request 1 at a position where no other request has that token bring the fault.
    const poisoned = reference[7]!;
    const bench = hostBench({
      onRun: ({ tokens, positions, mode }) => {
        if (mode === 'step' && tokens.some((token, row) => token === poisoned && positions[row] === 17))
          throw new NonFiniteError('layer 3: NaN');
      },
    });
    for (let id = 0; id < 4; id++) bench.add(id, promptOf(id, id === 1 ? 10 : 10 + 20 * (id + 1)));
    await bench.drain();
    const error = bench.ends.get(1);
    assert.ok(error instanceof NonFiniteError);
    assert.match(error.message, /step 8, position 17: layer 3/);
    assert.deepEqual(bench.tokens.get(1), reference.slice(0, 8));
    for (const id of [0, 2, 3])
      assert.deepEqual(bench.tokens.get(id), await alone(id, promptOf(id, 10 + 20 * (id + 1))));
  });

  test('a fault in a prompt fails that request alone', async () => {
    const bench = hostBench({
      onRun: ({ mode, tokens }) => {
        if (mode === 'prompt' && tokens.length === 7) throw new NonFiniteError('layer 0: NaN');
      },
    });
    bench.add(0, promptOf(0, 7));
    bench.add(1, promptOf(1, 8));
    await bench.drain();
    assert.match(String(bench.ends.get(0)), /step 0, prompt positions 0 to 6: layer 0/);
    assert.deepEqual(bench.tokens.get(1), await alone(1, promptOf(1, 8)));
  });

  test('a full cache fails the request that finds no page, the others go on', async () => {
    const bench = hostBench({ pages: 3 });
    bench.add(0, promptOf(0, 60), { maxTokens: 60 });
    bench.add(1, promptOf(1, 60), { maxTokens: 60 });
    await bench.drain();
    const failed = [0, 1].filter((id) => bench.ends.get(id) instanceof OutOfMemoryError);
    assert.deepEqual(failed, [1]);
    assert.deepEqual(bench.tokens.get(0), await alone(0, promptOf(0, 60), 60));
  });
});
