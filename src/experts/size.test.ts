import assert from 'node:assert/strict';
import { test } from 'node:test';
import { UsageError } from '../errors.ts';
import { type CacheSize, cacheStatus, parseExpertCache, recommendedSlots, slotsOfSize } from './size.ts';

/** Qwen3-30B-A3B. */
const model = { layers: 48, experts: 128, used: 8, expertBytes: 2_654_208 };

test('a policy and a size are read as slots, a per cent or bytes', () => {
  for (const [text, policy, size] of [
    ['slru:1536', 'slru', { kind: 'slots', slots: 1536 }],
    ['lfu:25%', 'lfu', { kind: 'percent', percent: 25 }],
    ['lru:12.5%', 'lru', { kind: 'percent', percent: 12.5 }],
    ['static:8GiB', 'static', { kind: 'bytes', bytes: 8 * 2 ** 30 }],
    ['slru:500MB', 'slru', { kind: 'bytes', bytes: 500e6 }],
    ['slru:100%', 'slru', { kind: 'percent', percent: 100 }],
    ['lfu', 'lfu', undefined],
  ] as const) {
    const spec = parseExpertCache(text);
    assert.deepEqual([spec.policy, spec.size], [policy, size], text);
  }
});

test('anything else is a usage error that says what was found', () => {
  for (const text of [
    '',
    ':',
    '25%',
    'slru:',
    'slru:0',
    'slru:0%',
    'slru:101%',
    'slru:-1',
    'slru:1.5',
    'slru:0GB',
    'slru:8GiB:2',
    'SLRU:1',
    'fifo:3',
    'constructor:3',
    'slru:99999999999999999999',
    'slru: 3',
  ]) {
    assert.throws(
      () => parseExpertCache(text),
      (error) => error instanceof UsageError && error.message.endsWith(`found ${JSON.stringify(text)}`),
      text,
    );
  }
});

test('a size is so many slots, and never more than there are experts', () => {
  for (const [text, slots] of [
    ['slru:1', 1],
    ['slru:1536', 1536],
    ['slru:99999', 6144],
    ['slru:25%', 1536],
    ['slru:12.5%', 768],
    ['slru:29%', 1781],
    ['slru:100%', 6144],
    ['slru:8GiB', 3236],
    ['slru:2654208', 6144],
    ['slru:2654208B', 1],
    ['slru:1TB', 6144],
  ] as const) {
    assert.equal(slotsOfSize(parseExpertCache(text).size as CacheSize, model), slots, text);
  }
  // 29% of 100 is 29, although 0.29 × 100 is less.
  assert.equal(slotsOfSize({ kind: 'percent', percent: 29 }, { layers: 1, experts: 100 }), 29);
});

test('a cache that holds nothing is a usage error', () => {
  for (const [size, message] of [
    [{ kind: 'percent', percent: 0.01 }, /0\.01% holds not one expert \(there are 6144 experts\)/],
    [{ kind: 'bytes', bytes: 2_654_207 }, /2654207 bytes holds not one expert \(an expert has 2654208 bytes\)/],
  ] as const) {
    assert.throws(() => slotsOfSize(size, model), { name: 'UsageError', message });
  }
  assert.throws(() => slotsOfSize({ kind: 'bytes', bytes: 1e9 }, { layers: 48, experts: 128 }), {
    name: 'UsageError',
    message: /needs to know the bytes of an expert/,
  });
});

test('twice a token’s experts a layer is recommended, and the status says what is missing', () => {
  const recommended = recommendedSlots(model);
  assert.equal(recommended, 768);
  assert.equal(recommendedSlots({ layers: 3, experts: 8, used: 6 }), 24);
  assert.equal(cacheStatus({ slots: 768, recommended }), 'ok');
  assert.equal(cacheStatus({ slots: 767, recommended }), 'below recommended');
  assert.equal(cacheStatus({ slots: 0, recommended }), 'budget exhausted');
  assert.equal(cacheStatus({ slots: 900, recommended, asked: 1000 }), 'budget exhausted');
  assert.equal(cacheStatus({ slots: 1000, recommended, asked: 1000 }), 'ok');
  assert.equal(cacheStatus({ slots: 10, recommended, asked: 10 }), 'below recommended');
});
