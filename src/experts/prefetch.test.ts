/** What is foreseen comes first, and pushes out nothing that is foreseen too. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ExpertCache } from './cache.ts';
import { Prefetch } from './prefetch.ts';

/** Two layers of four experts with a slab of three slots: at first 0 and 1 of layer 0, and 0 of layer 1. */
function cacheOf(policy: 'lru' | 'lfu' | 'static' = 'lru') {
  const cache = new ExpertCache({ policy, experts: 4, groups: [{ layers: [0, 1], slots: 3 }] });
  for (const upload of cache.fill()) cache.commit(upload);
  return cache;
}

test('of what the step before used and has no slot the one used most comes first, then the next, then nothing', () => {
  const cache = cacheOf();
  const prefetch = new Prefetch(cache, 'previous');
  assert.equal(prefetch.begin(), undefined);
  cache.touch(1, [2]);
  cache.endStep();
  for (const [layer, experts] of [
    [0, [0, 3]],
    [1, [2]],
  ] as const) {
    cache.touch(layer, experts);
    prefetch.used(layer, experts);
  }
  assert.equal(prefetch.begin(), undefined, 'a step counts when it is over');
  assert.deepEqual(
    [...prefetch.endStep()],
    [
      [0, { named: 0, used: 2, right: 0 }],
      [1, { named: 0, used: 1, right: 0 }],
    ],
  );
  const first = prefetch.begin();
  assert.deepEqual([first?.layer, first?.expert], [1, 2]);
  const second = prefetch.begin();
  assert.deepEqual([second?.layer, second?.expert], [0, 3]);
  // Expert 0 of layer 0 is foreseen itself: the two others have left.
  assert.deepEqual([cache.lookup(0, 0), cache.lookup(0, 1), cache.lookup(1, 0)], [0, undefined, undefined]);
  assert.equal(prefetch.begin(), undefined);
});

test('no slot is had where all that is in them is foreseen, or stays for good', () => {
  const cache = cacheOf();
  const prefetch = new Prefetch(cache, 'previous');
  prefetch.used(0, [0, 1, 2]);
  prefetch.used(1, [0]);
  prefetch.endStep();
  assert.equal(prefetch.begin(), undefined);
  const fixed = new Prefetch(cacheOf('static'), 'previous');
  fixed.used(0, [2]);
  fixed.endStep();
  assert.equal(fixed.begin(), undefined);
});

test('a gate’s word counts for the step that it was given in, and for what comes next', () => {
  const cache = cacheOf();
  const prefetch = new Prefetch(cache, 'gate');
  prefetch.used(1, [0, 1]);
  prefetch.named(1, [1, 3], 2);
  assert.deepEqual([...prefetch.endStep()], [[1, { named: 2, used: 2, right: 1 }]]);
  assert.deepEqual(
    [prefetch.begin(), prefetch.begin(), prefetch.begin()].map((upload) => upload?.expert),
    [1, 3, undefined],
  );
});
