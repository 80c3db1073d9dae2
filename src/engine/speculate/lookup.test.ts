/** What is looked up: the longest run of last tokens, at its latest place, and what came behind it. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { promptOf, SAMPLING } from '../../../test/support/scheduler-bench.ts';
import { PagePool, Timeline } from '../kv-cache.ts';
import { Request } from '../request.ts';
import { Sampler } from '../sampler.ts';
import { LookupDrafts, lookUp } from './lookup.ts';

const find = (most: number, ...tokens: number[]) => lookUp(Int32Array.from(tokens), most);

test('what followed the last tokens before may follow again', () => {
  assert.deepEqual(find(3, 1, 2, 3, 4, 5, 1, 2), [3, 4, 5]);
  assert.deepEqual(find(2, 1, 2, 3, 4, 5, 1, 2), [3, 4]);
  // Not further than what has been said.
  assert.deepEqual(find(7, 1, 2, 3, 1, 2), [3, 1, 2]);
});

test('the longest run wins, then the latest place', () => {
  // `2 3` was followed by 9 last, but `1 2 3` by 4.
  assert.deepEqual(find(1, 1, 2, 3, 4, 7, 2, 3, 9, 1, 2, 3), [4]);
  assert.deepEqual(find(1, 2, 3, 4, 7, 2, 3, 9, 5, 2, 3), [9]);
  // Four are enough: a longer one further back does not count.
  assert.deepEqual(find(1, 0, 1, 2, 3, 4, 8, 6, 1, 2, 3, 4, 9, 0, 1, 2, 3, 4), [9]);
});

test('one token is too little, and nothing is found where there is nothing', () => {
  assert.deepEqual(find(3, 1, 2, 3, 4, 2), []);
  assert.deepEqual(find(3, 1, 2), []);
  assert.deepEqual(find(3, 1), []);
  assert.deepEqual(find(3), []);
});

test('a repetition goes on', () => {
  assert.deepEqual(find(3, 5, 5, 5, 5), [5]);
  assert.deepEqual(find(3, 1, 2, 1, 2, 1, 2), [1, 2]);
});

test('a request is looked up in its prompt and its answer, however long that gets', async () => {
  const drafts = new LookupDrafts();
  const request = new Request({
    id: 0,
    timeline: new Timeline(new PagePool(1), 64),
    prompt: Int32Array.from(promptOf(1, 5)),
    settings: SAMPLING,
    sampler: new Sampler(SAMPLING),
    maxTokens: 4000,
    endTokens: new Set(),
  });
  for (let token = 0; token < 1000; token++) {
    request.answer.push(token % 61);
    const tokens = Int32Array.from([...request.prompt, ...request.answer]);
    if (token % 37 !== 0) continue;
    assert.deepEqual(await drafts.propose([{ request, most: 3 }]), [lookUp(tokens, 3)]);
  }
});
