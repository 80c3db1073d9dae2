import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { nodeModelSource } from '../../test/support/node-source.ts';
import { SKEWED, traceSource } from '../../test/support/trace-source.ts';
import { type ReplayOptions, replay } from './replay.ts';
import { RoutingTrace } from './trace.ts';

async function replayed(options: ReplayOptions) {
  const trace = await RoutingTrace.open(await nodeModelSource(`${SKEWED}/trace.json`));
  try {
    return await replay(trace, options);
  } finally {
    await trace.close();
  }
}

/** Of 48 × 128 experts. */
const SIZES = { '12%': 768, '25%': 1536, '50%': 3072 } as const;

test('LRU without a bound and static hit as often as the trace says they do', async () => {
  const stated = JSON.parse(readFileSync(`${SKEWED}/trace.json`, 'utf8'));
  const sizes = Object.entries(SIZES);
  const { rows, routing } = await replayed({
    cases: sizes.flatMap(([, slots]) => [
      { policy: 'lru', slots },
      { policy: 'static', slots },
    ]),
    warmUpTokens: 256,
  });
  for (const [index, [size]] of sizes.entries()) {
    assert.equal(rows[2 * index].hitRate.toFixed(3), stated.lru[size].toFixed(3), `lru ${size}`);
    // At the border many experts were used as often as each other (33, 68 and 235 of them): which of them are in is arbitrary.
    assert.ok(Math.abs(rows[2 * index + 1].hitRate - stated.staticFirst256[size]) < 1e-3, `static ${size}`);
    assert.equal(rows[2 * index + 1].uploadsPerToken, 0);
    // Without a bound each miss is an upload.
    assert.ok(Math.abs(rows[2 * index].uploadsPerToken - (1 - rows[2 * index].hitRate) * 48 * 8) < 0.2);
  }
  assert.equal(routing.busierHalfShare.toFixed(3), stated.busierHalfShare.toFixed(3));
  // The fixture leaves out the tokens that begin a text, 3 of 2,047.
  assert.ok(Math.abs(routing.sharedWithPreviousToken - stated.sharedWithPreviousToken) < 1e-3);
  assert.ok(routing.entropyBits > 6 && routing.entropyBits < 7);
  assert.ok(Math.abs(routing.entropyShare - routing.entropyBits / 7) < 1e-9);
});

test('a bound on uploads is kept, and more uploads hit more', async () => {
  const cases = (['lru', 'slru', 'lfu'] as const).map((policy) => ({ policy, slots: SIZES['25%'] }));
  let before = [0, 0, 0];
  for (const uploads of [0, 1, 4, 16]) {
    const { rows } = await replayed({ cases, warmUpTokens: 256, uploads });
    for (const { uploadsPerToken } of rows) {
      assert.ok(
        uploadsPerToken <= uploads && uploadsPerToken > 0.9 * uploads - 1e-9,
        `${uploadsPerToken} of ${uploads}`,
      );
    }
    const rates = rows.map(({ hitRate }) => hitRate);
    for (const [index, rate] of rates.entries()) assert.ok(rate > before[index]);
    before = rates;
  }
});

/** One layer, four experts, one used: `ids` token for token. */
function line(ids: readonly number[]) {
  const shape = { layers: 1, experts: 4, used: 1, tokens: ids.length };
  return RoutingTrace.open(traceSource(JSON.stringify(shape), Uint8Array.from(ids)));
}

test('a small trace by hand', async () => {
  const cases = (['lru', 'slru', 'lfu', 'static'] as const).map((policy) => ({ policy, slots: 2 }));
  const ids = [0, 2, 0, 2, 2, 3, 2, 3];
  const immediate = await replay(await line(ids), { cases, warmUpTokens: 2 });
  // In the slots at first: 0 and 1, of static 0 and 2. LRU after the warm-up: 0 and 2; all hits until 3 pushes out 0.
  assert.deepEqual(immediate.rows[0], {
    policy: 'lru',
    slots: 2,
    share: 0.5,
    hitRate: 5 / 6,
    wholeShare: 5 / 6,
    uploadsPerToken: 1 / 6,
    bytesPerToken: undefined,
  });
  assert.equal(immediate.rows[3].hitRate, 4 / 6);
  // With no upload at all the even fill stays: 0 and 1.
  const none = await replay(await line(ids), { cases, warmUpTokens: 2, uploads: 0 });
  assert.deepEqual(
    none.rows.map(({ hitRate }) => hitRate),
    [1 / 6, 1 / 6, 1 / 6, 4 / 6],
  );
  assert.equal(immediate.routing.sharedWithPreviousToken, 1 / 7);
});

test('what a layer uses is never pushed out for it', async () => {
  // Three used of four experts, two slots: one upload at the most can help, and must not take the others' slots.
  const shape = { layers: 1, experts: 4, used: 3, tokens: 4 };
  const ids = Uint8Array.from([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
  const trace = await RoutingTrace.open(traceSource(JSON.stringify(shape), ids));
  const { rows } = await replay(trace, { cases: [{ policy: 'lru', slots: 2 }], warmUpTokens: 0 });
  assert.deepEqual([rows[0].hitRate, rows[0].uploadsPerToken, rows[0].wholeShare], [2 / 3, 0, 0]);
});

test('a warm-up that leaves nothing is a usage error', async () => {
  const cases = [{ policy: 'lru', slots: 1 }] as const;
  await assert.rejects(replay(await line([0, 1]), { cases, warmUpTokens: 2 }), {
    name: 'UsageError',
    message: /a warm-up of 2 tokens leaves none of the trace's 2/,
  });
  const { rows } = await replay(await line([0, 1]), { cases, warmUpTokens: 0, expertBytes: 300 });
  assert.deepEqual([rows[0].hitRate, rows[0].uploadsPerToken, rows[0].bytesPerToken], [0.5, 0.5, 150]);
});

test('pinned experts stay', async () => {
  // 0 is hot in the warm-up, then 1, 2 and 3 take turns: without a pin it goes.
  const ids = [0, 0, 0, 0, 1, 2, 3, 1, 2, 3, 0];
  const cases = [{ policy: 'lru', slots: 2 }] as const;
  const free = await replay(await line(ids), { cases, warmUpTokens: 4 });
  const pinned = await replay(await line(ids), { cases, warmUpTokens: 4, pinShare: 0.5 });
  assert.equal(Math.round(free.rows[0].hitRate * 7), 1);
  assert.equal(Math.round(pinned.rows[0].hitRate * 7), 2);
});

test('prefetching brings what the token before used before what was used more often', async () => {
  // 1 was used more, then 2 is used three times in a row: only who looks back one token has it there.
  const ids = [1, 1, 1, 1, 1, 1, 2, 2, 2, 1];
  const cases = [
    { policy: 'lfu', slots: 1 },
    { policy: 'static', slots: 1 },
  ] as const;
  const { rows } = await replay(await line(ids), { cases, warmUpTokens: 6, uploads: 1, prefetch: true });
  assert.deepEqual(
    rows.map(({ hitRate, prefetchingHitRate }) => [hitRate, prefetchingHitRate]),
    [
      [1 / 4, 2 / 4],
      [1 / 4, undefined],
    ],
  );
  await assert.rejects(replay(await line(ids), { cases, warmUpTokens: 6, prefetch: true }), {
    name: 'UsageError',
    message: /^prefetch \(--prefetch\) .* without uploads \(--uploads\) all come/,
  });
});

test('progress goes from the first token to the last', async () => {
  const told: number[] = [];
  await replay(await line([0, 1, 2]), {
    cases: [{ policy: 'lru', slots: 1 }],
    warmUpTokens: 1,
    onProgress: ({ tokensDone, tokensTotal }) => told.push(tokensDone, tokensTotal),
  });
  assert.deepEqual(told, [1, 3, 2, 3, 3, 3]);
});
