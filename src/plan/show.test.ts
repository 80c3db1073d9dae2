import assert from 'node:assert/strict';
import { test } from 'node:test';
import { showBytes, showCount, showPlural, showRanges, showRate, showTime, wrap } from './show.ts';

test('bytes keep three digits and move to the next unit before a fourth', () => {
  const shown = [0, 1, 999, 1000, 1024, 999_499, 999_500, 26_123_456, 4_294_901_760, 1e15].map(showBytes);
  assert.deepEqual(shown, [
    '0 B',
    '1 B',
    '999 B',
    '1 kB',
    '1.02 kB',
    '999 kB',
    '1.00 MB',
    '26.1 MB',
    '4.29 GB',
    '1 PB',
  ]);
});

test('counts have commas, bigints too', () => {
  assert.deepEqual([0, 999, 1000, 1234567].map(showCount), ['0', '999', '1,000', '1,234,567']);
  assert.equal(showCount(2n ** 60n), '1,152,921,504,606,846,976');
});

test('rates and times', () => {
  assert.deepEqual(
    [0.123, 9.996, 12.34, 1234.5].map((rate) => showRate(rate, 'tokens')),
    ['0.12 tokens/s', '10.0 tokens/s', '12.3 tokens/s', '1,235 tokens/s'],
  );
  assert.equal(showRate(Number.NaN, 'MB'), '– MB/s');
  assert.equal(showRate(Number.POSITIVE_INFINITY, 'MB'), '– MB/s');
  assert.deepEqual([0.5, 12, 1420, 59_990, 125_000].map(showTime), [
    '0.50 ms',
    '12 ms',
    '1.42 s',
    '60.0 s',
    '2 min 5 s',
  ]);
});

test('plurals and ranges', () => {
  assert.deepEqual([showPlural(1, 'tensor'), showPlural(2000, 'tensor')], ['1 tensor', '2,000 tensors']);
  assert.deepEqual([[], [3], [1, 2], [1, 2, 3], [0, 2, 3, 4, 8]].map(showRanges), [
    '',
    '3',
    '1, 2',
    '1–3',
    '0, 2–4, 8',
  ]);
});

test('text wraps between words and keeps every one of them', () => {
  assert.deepEqual(wrap('one two three', 7), ['one two', 'three']);
  assert.deepEqual(wrap('a verylongword b', 4), ['a', 'verylongword', 'b']);
  assert.deepEqual(wrap('', 5), ['']);
});
