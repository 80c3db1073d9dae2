/** The expert cache against its rules told naively, and what holds whatever it decides. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { random } from '../../test/conformance/support/blocks.ts';
import { NaiveCache } from '../../test/support/naive-cache.ts';
import { InternalError } from '../errors.ts';
import { ExpertCache, type ExpertId, type Upload } from './cache.ts';
import { policyNames } from './policies.ts';

const STORM_STEPS = 10_000;

/** Ids below `count`, some much more often, as routers do it. @param turn which are the frequent ones */
function skewed(next: () => number, count: number, turn = 0): number {
  return (Math.floor(count * next() ** 5) + turn) % count;
}

describe('a storm of uses and uploads is answered as the rules say', () => {
  for (const policy of policyNames) {
    for (const [slots, pin] of [
      [1, undefined],
      [3, undefined],
      [10, undefined],
      [10, { afterTokens: 600, share: 0.5 }],
      [4, { afterTokens: 600, share: 1 }],
      [40, undefined],
    ] as const) {
      test(`${policy}, ${slots} slots${pin === undefined ? '' : `, ${100 * pin.share}% of them pinned`}`, () => {
        const next = random(slots + policy.length);
        const experts = 32;
        const options = { policy, slots, halveEveryTokens: 16, pin };
        const cache = new ExpertCache({ ...options, experts, groups: [{ layers: [7], slots }] });
        const naive = new NaiveCache({ ...options, pairs: experts });
        const pending: number[] = [];
        if (next() < 0.5) {
          for (const { expert, slot } of cache.fill()) {
            assert.equal(naive.begin(expert, () => false)?.slot, slot);
            pending.push(expert);
          }
        }
        for (let step = 0; step < STORM_STEPS; step++) {
          const what = next();
          // Texts change, and what was hot is forgotten.
          const turn = 5 * Math.floor(step / 2000);
          if (what < 0.4) {
            const rows = next() < 0.9 ? 1 : 1 + Math.floor(100 * next());
            const used = Array.from({ length: 4 }, () => skewed(next, experts, turn));
            const hits = used.filter((expert) => naive.lookup(expert) !== undefined).length;
            for (const expert of used) naive.use(expert, rows);
            assert.equal(cache.touch(7, used, rows), hits);
            cache.endStep(rows);
            naive.endStep(rows);
          } else if (what < 0.7) {
            const now = new Set(Array.from({ length: Math.floor(6 * next()) }, () => skewed(next, experts, turn)));
            const id = cache.candidate((layer, expert) => layer === 7 && now.has(expert));
            assert.equal(
              id?.expert,
              naive.candidate((expert) => now.has(expert)),
            );
            if (id === undefined) continue;
            const begun = cache.begin(id, (layer, expert) => layer === 7 && now.has(expert));
            const expected = naive.begin(id.expert, (expert) => now.has(expert));
            assert.deepEqual([begun?.slot, begun?.evicted?.expert], [expected?.slot, expected?.evicted]);
            assert.ok(begun?.evicted === undefined || !now.has(begun.evicted.expert), 'what is held stays');
            pending.push(id.expert);
          } else if (pending.length > 0) {
            const [expert] = pending.splice(Math.floor(pending.length * next()), 1);
            const end = next() < 0.85 ? 'commit' : 'abort';
            cache[end]({ layer: 7, expert });
            naive[end](expert);
          }
          for (let expert = 0; expert < experts; expert++) {
            assert.equal(cache.lookup(7, expert), naive.lookup(expert), `step ${step}, expert ${expert}`);
          }
        }
      });
    }
  }
});

test('a slot belongs to one expert at a time, of its own group, and the table of each layer says where all are', () => {
  const next = random(5);
  const groups = [
    { layers: [0, 1, 5], slots: 7 },
    { layers: [2, 3], slots: 20 },
  ];
  for (const policy of policyNames) {
    const cache = new ExpertCache({ policy, experts: 8, groups });
    const pending: ExpertId[] = [...cache.fill()];
    for (let step = 0; step < 3_000; step++) {
      const layer = [0, 1, 2, 3, 5][Math.floor(5 * next())];
      cache.touch(
        layer,
        Array.from({ length: 2 }, () => skewed(next, 8)),
      );
      const id = cache.candidate();
      if (id !== undefined) pending.push(cache.begin(id) as Upload);
      if (pending.length > 0 && next() < 0.7) {
        cache[next() < 0.9 ? 'commit' : 'abort'](pending.splice(Math.floor(next() * pending.length), 1)[0]);
      }
      if (next() < 0.2) cache.endStep();
      const taken = new Set<string>();
      for (const [group, { layers }] of groups.entries()) {
        for (const each of layers) {
          const table = cache.table(each) as Int32Array;
          for (let expert = 0; expert < 8; expert++) {
            const slot = cache.lookup(each, expert);
            assert.equal(table[expert], slot ?? -1);
            if (slot === undefined) continue;
            assert.ok(slot < groups[group].slots);
            assert.ok(!taken.has(`${group} ${slot}`), 'two experts in one slot');
            taken.add(`${group} ${slot}`);
            assert.deepEqual(cache.holder(group, slot), { layer: each, expert });
          }
        }
      }
    }
  }
});

test('an expert is found from the commit of its upload on, and its victim until the upload begins', () => {
  const cache = new ExpertCache({ policy: 'lru', experts: 4, groups: [{ layers: [0], slots: 1 }] });
  for (const upload of cache.fill()) cache.commit(upload);
  assert.equal(cache.lookup(0, 0), 0);
  assert.equal(cache.touch(0, [2]), 0);
  assert.deepEqual(cache.candidate(), { layer: 0, expert: 2 });
  assert.equal(cache.lookup(0, 0), 0);
  const upload = cache.begin({ layer: 0, expert: 2 }) as Upload;
  assert.deepEqual(upload, { layer: 0, expert: 2, group: 0, slot: 0, evicted: { layer: 0, expert: 0 } });
  assert.equal(cache.lookup(0, 0), undefined);
  assert.equal(cache.lookup(0, 2), undefined);
  assert.deepEqual(cache.holder(0, 0), { layer: 0, expert: 2 });
  assert.equal(cache.touch(0, [2]), 0, 'a use under way is a miss');
  assert.equal(cache.candidate(), undefined, 'and is not wanted twice');
  assert.equal(cache.begin({ layer: 0, expert: 3 }), undefined, 'a slot on its way is nobody’s victim');
  cache.commit(upload);
  assert.equal(cache.touch(0, [2]), 1);
});

test('a failed upload leaves its slot free, and nobody in it', () => {
  const cache = new ExpertCache({ policy: 'slru', experts: 4, groups: [{ layers: [0], slots: 1 }] });
  for (const upload of cache.fill()) cache.commit(upload);
  const upload = cache.begin({ layer: 0, expert: 2 }) as Upload;
  cache.abort(upload);
  assert.deepEqual(
    [0, 1, 2, 3].map((expert) => cache.lookup(0, expert)),
    [undefined, undefined, undefined, undefined],
  );
  assert.equal(cache.holder(0, 0), undefined);
  assert.deepEqual(cache.begin({ layer: 0, expert: 1 }), {
    layer: 0,
    expert: 1,
    group: 0,
    slot: 0,
    evicted: undefined,
  });
});

test('what the caller gets wrong is an internal error', () => {
  const groups = [{ layers: [0], slots: 2 }];
  const cache = new ExpertCache({ policy: 'lru', experts: 4, groups });
  const [first] = cache.fill();
  const wrong: readonly (() => unknown)[] = [
    () => cache.begin(first),
    () => cache.commit({ layer: 0, expert: 3 }),
    () => cache.abort({ layer: 0, expert: 3 }),
    () => cache.touch(1, [0]),
    () => cache.touch(0, [4]),
    () => cache.touch(0, [-1]),
    () => cache.touch(0, [0.5]),
    () => new ExpertCache({ policy: 'lru', experts: 4, groups: [...groups, ...groups] }),
    () => new ExpertCache({ policy: 'lru', experts: 4, groups: [{ layers: [0], slots: 0 }] }),
    () => new ExpertCache({ policy: 'lru', experts: 4, groups: [{ layers: [], slots: 2 }] }),
  ];
  for (const act of wrong) assert.throws(act, InternalError);
  cache.commit(first);
  assert.throws(() => cache.commit(first), InternalError);
  assert.throws(() => cache.begin(first), InternalError);
});

test('a layer without slots is found nowhere', () => {
  const cache = new ExpertCache({ policy: 'lru', experts: 4, groups: [{ layers: [1], slots: 2 }] });
  assert.deepEqual([cache.lookup(0, 0), cache.table(0), cache.groupOf(0)], [undefined, undefined, undefined]);
  assert.equal(cache.groupOf(1), 0);
});

test('the first fill is even over the layers, or of the hottest; static keeps it', () => {
  const groups = [{ layers: [0, 1, 2], slots: 5 }];
  const where = (cache: ExpertCache) =>
    cache.fill().map((upload) => {
      cache.commit(upload);
      return `${upload.layer}.${upload.expert}`;
    });
  const even = new ExpertCache({ policy: 'static', experts: 4, groups });
  assert.deepEqual(where(even), ['0.0', '0.1', '1.0', '1.1', '2.0']);
  const hottest = new ExpertCache({
    policy: 'static',
    experts: 4,
    groups,
    uses: (layer, expert) => (layer === 1 ? 10 + expert : expert === 3 ? 5 : 0),
  });
  // The coldest first; of layers 0 and 2, whose experts 3 are as hot as each other, the lower.
  assert.deepEqual(where(hottest), ['0.3', '1.0', '1.1', '1.2', '1.3']);
  for (let step = 0; step < 100; step++) {
    assert.equal(hottest.touch(1, [0, 1]), 2);
    assert.equal(hottest.touch(2, [0, 1]), 0);
    assert.equal(hottest.candidate(), undefined);
    hottest.endStep();
  }
  assert.equal(hottest.begin({ layer: 2, expert: 0 }), undefined);
});

test('more slots than experts hold them all', () => {
  for (const policy of policyNames) {
    const cache = new ExpertCache({ policy, experts: 4, groups: [{ layers: [0, 1], slots: 20 }] });
    for (const upload of cache.fill()) cache.commit(upload);
    assert.equal(cache.touch(0, [0, 1, 2, 3]) + cache.touch(1, [0, 1, 2, 3]), 8);
    assert.equal(cache.candidate(), undefined);
  }
});

test('between groups the hotter expert goes first', () => {
  const groups = [
    { layers: [0], slots: 1 },
    { layers: [1], slots: 1 },
  ];
  const cache = new ExpertCache({ policy: 'slru', experts: 4, groups });
  for (const upload of cache.fill()) cache.commit(upload);
  cache.touch(0, [1, 2]);
  cache.touch(1, [3, 3]);
  assert.deepEqual(cache.candidate(), { layer: 1, expert: 3 });
  cache.begin({ layer: 1, expert: 3 });
  assert.deepEqual(cache.candidate(), { layer: 0, expert: 2 });
});

test('segmented LRU keeps what was used twice from what is used once', () => {
  const cache = new ExpertCache({ policy: 'slru', experts: 16, groups: [{ layers: [0], slots: 4 }] });
  for (const upload of cache.fill()) cache.commit(upload);
  cache.touch(0, [0, 1, 2]);
  cache.endStep();
  for (let expert = 4; expert < 16; expert++) {
    cache.touch(0, [expert]);
    const upload = cache.begin(cache.candidate() as ExpertId) as Upload;
    cache.commit(upload);
    cache.endStep();
  }
  assert.deepEqual(
    [0, 1, 2, 3].map((expert) => cache.lookup(0, expert) !== undefined),
    [true, true, true, false],
  );
});

test('recency lets a miss wait for one step; frequency waits as long as it takes', () => {
  for (const [policy, waits] of [
    ['lru', false],
    ['slru', false],
    ['lfu', true],
  ] as const) {
    const cache = new ExpertCache({ policy, experts: 4, groups: [{ layers: [0], slots: 1 }] });
    for (const upload of cache.fill()) cache.commit(upload);
    cache.touch(0, [2]);
    cache.endStep();
    assert.deepEqual(cache.candidate(), { layer: 0, expert: 2 });
    cache.endStep();
    assert.equal(cache.candidate() !== undefined, waits, policy);
  }
});

test('counts that have faded say nothing any more: then the last use decides', () => {
  const filled = new ExpertCache({
    policy: 'lfu',
    experts: 4,
    groups: [{ layers: [0], slots: 2 }],
    halveEveryTokens: 1,
  });
  for (const upload of filled.fill()) filled.commit(upload);
  const empty = new ExpertCache({
    policy: 'lfu',
    experts: 4,
    groups: [{ layers: [0], slots: 1 }],
    halveEveryTokens: 1,
  });
  for (const [cache, used] of [
    [filled, [0, 0, 1]],
    [empty, [2, 2, 3]],
  ] as const) {
    cache.touch(0, used);
    for (let step = 0; step < 20; step++) cache.endStep();
  }
  filled.touch(0, [3]);
  assert.deepEqual(filled.begin(filled.candidate() as ExpertId)?.evicted, { layer: 0, expert: 0 });
  assert.deepEqual(empty.candidate(), { layer: 0, expert: 3 });
});
