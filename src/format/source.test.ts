import assert from 'node:assert/strict';
import { test } from 'node:test';
import { memorySource, periodOf } from './source.ts';

test('a period holds for ranges within the stated one that are longer than it', () => {
  const source = { ...memorySource(new Uint8Array(200)), repeats: [{ offset: 10, bytes: 90, period: 20 }] };
  assert.equal(periodOf(source, 10, 90), 20);
  assert.equal(periodOf(source, 33, 21), 20);
  assert.equal(periodOf(source, 33, 20), undefined, 'one period alone repeats nothing');
  assert.equal(periodOf(source, 9, 50), undefined);
  assert.equal(periodOf(source, 60, 41), undefined);
  assert.equal(periodOf(memorySource(new Uint8Array(200)), 10, 90), undefined);
});
