/** `conclave bench` against a library made for the test: what it runs, and what it makes of the figures. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Asked, fakeLibrary, world } from '../../test/support/cli-world.ts';
import { series, tokenSource } from './bench.ts';
import { main } from './commands.ts';

for (const [flags, message] of [
  [['-p', '9007199254740991'], /the prefill test of 9007199254740991 tokens \(-p\) needs a context of/],
  [['-p', '0', '-n', '5000'], /the decode test of 5000 tokens \(-n\) needs a context of 5001, and the model has \d+/],
] as const) {
  test(`bench ${flags.join(' ')} does not fit the context: a usage error before anything is computed`, async () => {
    const { library, asked } = fakeLibrary(() => ['x']);
    const { context, err } = world(library);
    assert.equal(await main(['bench', ...flags, '-r', '1'], context), 2);
    assert.match(err(), message);
    assert.deepEqual([asked[0]!.prompts, asked[0]!.disposed], [[], 1]);
  });
}

test('bench measures what it says: a warm-up dropped, sessions of their own, nothing ended by an end token', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  const { context, out } = world(library);
  assert.equal(await main(['bench', '-p', '16', '-n', '8', '-r', '2', '--json'], context), 0);
  const result = JSON.parse(out());
  assert.deepEqual(result.prefill, { tokens: 16, runs: [500, 500], median: 500, min: 500, max: 500 });
  assert.deepEqual(result.decode, { tokens: 8, runs: [150, 150], median: 150, min: 150, max: 150 });
  assert.ok(result.bandwidth.bytesPerSecond > 0 && result.bandwidth.bytes >= 65_536);
  assert.ok(Math.abs(result.bandwidthShare - (150 * 1000) / result.bandwidth.bytesPerSecond) < 1e-12);
  assert.ok(result.peakMemoryBytes > 1e7);
  const [{ prompts, sessions }] = asked as [Asked];
  assert.equal(sessions, 6);
  const tokens = prompts.map(({ prompt }) => (prompt as { tokens: number[] }).tokens);
  assert.deepEqual(
    tokens.map((each) => each.length),
    [16, 16, 16, 1, 1, 1],
  );
  assert.ok(tokens.flat().every((id) => Number.isInteger(id) && id >= 0 && id < 100));
  assert.notDeepEqual(tokens[0], tokens[1]);
  assert.deepEqual(
    prompts.map(({ options }) => options.maxTokens),
    [1, 1, 1, 8, 8, 8],
  );
  assert.ok(prompts.every(({ options }) => options.ignoreEos === true && options.temperature === 0));
});

test('random tokens are the same for a seed, differ between seeds and cover the vocabulary', () => {
  assert.deepEqual(tokenSource(1000, 7)(50), tokenSource(1000, 7)(50));
  assert.notDeepEqual(tokenSource(1000, 7)(50), tokenSource(1000, 8)(50));
  assert.equal(new Set(tokenSource(10, 1)(500)).size, 10);
});

test('the median of an even number of runs lies between the two in the middle', () => {
  assert.deepEqual(series(1, [4, 1, 3, 2]), { tokens: 1, runs: [4, 1, 3, 2], median: 2.5, min: 1, max: 4 });
  assert.equal(series(1, [5, 1, 3]).median, 3);
});
