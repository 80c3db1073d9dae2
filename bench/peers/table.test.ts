import assert from 'node:assert/strict';
import { test } from 'node:test';

import { type Figures, median, promptOf } from './measure.ts';
import { table } from './table.ts';

function figures(scale: number): Figures {
  return {
    loadMs: 100 * scale,
    firstTokenMs: 150 * scale,
    prefill128TokensPerSecond: 1000 / scale,
    prefill512TokensPerSecond: 2000 / scale,
    decodeTokensPerSecond: 50 / scale,
    peakBytes: scale * 2 ** 28,
    greedy: [1, 2, 3],
  };
}

test('a ratio is ours over theirs, for every figure of every model', () => {
  const comparison = {
    model: 'a.gguf',
    bytes: 26e6,
    conclave: figures(2),
    llama: figures(1),
    sameTokens: 2,
    rounds: { conclave: [], llama: [] },
  };
  const text = table(
    [comparison],
    { cpu: 'some CPU', cores: 2, node: 'v26.0.0', commit: 'abc', peer: 'node-llama-cpp 1.2.3', date: '2026-01-02' },
    { threads: 2, context: 1024, batch: 512, rounds: 5, repeats: 3 },
  );
  assert.match(text, /some CPU, 2 cores; Node v26\.0\.0; Conclave abc; node-llama-cpp 1\.2\.3/);
  assert.match(text, /\| a\.gguf \(26 MB\) \| load, ms \| 200 \| 100 \| 2\.00 \|/);
  assert.match(text, /\| prefill 512, tokens\/s \| 1000\.0 \| 2000\.0 \| 0\.50 \|/);
  assert.match(text, /\| decode 128, tokens\/s \| 25\.0 \| 50\.0 \| 0\.50 \|/);
  assert.match(text, /\| peak memory, MiB \| 512 \| 256 \| 2\.00 \|/);
  assert.match(text, /same greedy tokens \| 2 of 3/);
});

test('prompts are the same every time, spare the ends of the vocabulary, and a longer one begins like a shorter one', () => {
  const ids = promptOf(512, 6144);
  assert.deepEqual(promptOf(128, 6144), ids.slice(0, 128));
  assert.ok(ids.every((id) => Number.isInteger(id) && id >= 300 && id < 5600));
  assert.ok(new Set(ids).size > 400);
});

test('the median of an even number of runs lies between the middle two', () => {
  assert.equal(median([3, 1, 2]), 2);
  assert.equal(median([4, 1, 3, 2]), 2.5);
  assert.ok(Number.isNaN(median([])));
});
