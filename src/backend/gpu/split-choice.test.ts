/** What rows chose, which experts of a prompt pass through the device, and which rows come to the host: for any choice. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { random } from '../../../test/conformance/support/blocks.ts';
import { Balance, chosenOf, type Group, pairsOf, rowsOf } from './split-choice.ts';

/** Choices [rows · used] of all kinds: even ones, ones where most rows choose the same, and of experts that nobody chooses. */
function* choices(): Generator<{ readonly rows: number; readonly used: number; readonly experts: number } & Chosen> {
  const next = random(5);
  for (const [rows, used, experts] of [
    [1, 1, 1],
    [1, 8, 128],
    [7, 2, 8],
    [64, 4, 4],
    [200, 3, 60],
  ] as const) {
    for (const skew of [1, 3]) {
      const ids = Uint32Array.from({ length: rows * used }, () => Math.floor(experts * next() ** skew));
      yield { rows, used, experts, ids };
    }
  }
}

interface Chosen {
  readonly ids: Uint32Array;
}

/** The choice as the device writes it: ids, then what is no id. */
function routed(ids: Uint32Array, used: number, routeWidth: number): ArrayBuffer {
  const rows = ids.length / used;
  const words = new Uint32Array(rows * routeWidth).fill(0x3f000000);
  for (let row = 0; row < rows; row++) words.set(ids.subarray(row * used, (row + 1) * used), row * routeWidth);
  return words.buffer;
}

const groupsFor = (ids: Uint32Array, { rows, used, experts }: Record<'rows' | 'used' | 'experts', number>) =>
  chosenOf(routed(ids, used, 2 * used + 1), { rows, used, experts, routeWidth: 2 * used + 1, given: undefined });

describe('a choice', () => {
  test('is every pair once, by expert, in the order of rows', () => {
    for (const { ids, ...shape } of choices()) {
      const found = groupsFor(ids, shape);
      assert.deepEqual(found.ids, ids);
      const experts = found.groups.map(({ expert }) => expert);
      assert.deepEqual(
        experts,
        [...new Set(ids)].sort((a, b) => a - b),
      );
      for (const { expert, pairs } of found.groups) {
        const own = [...ids.keys()].filter((pair) => ids[pair] === expert);
        assert.deepEqual([...pairs], own);
      }
      assert.equal(pairsOf(found.groups), ids.length);
    }
  });

  test('is the given one, whatever the device chose', () => {
    const given = Uint32Array.of(3, 1, 1, 0);
    const how = { rows: 2, used: 2, experts: 4, routeWidth: 5 };
    const found = chosenOf(routed(Uint32Array.of(0, 2, 2, 3), 2, 5), { ...how, given });
    assert.equal(found.ids, given);
    assert.deepEqual(
      found.groups.map(({ expert, pairs }) => [expert, [...pairs]]),
      [
        [0, [3]],
        [1, [1, 2]],
        [3, [0]],
      ],
    );
  });

  test('of a row that cannot be routed is of experts that there are', () => {
    const found = groupsFor(Uint32Array.of(0xffffffff, 4, 2, 0), { rows: 2, used: 2, experts: 4 });
    assert.deepEqual([...found.ids], [3, 3, 2, 0]);
  });
});

describe('of absent experts', () => {
  const all = (groups: readonly Group[]) => groups.map(({ expert }) => expert).sort((a, b) => a - b);

  test('all pass through the device where that is planned', () => {
    for (const { ids, ...shape } of choices()) {
      const { groups } = groupsFor(ids, shape);
      assert.deepEqual(new Balance({ passes: 'all', hostPairs: 0 }).share(groups), { passing: groups, rest: [] });
    }
  });

  test('those of most rows pass, until the others take the CPU no longer, and fit what it has room for', () => {
    for (const { ids, ...shape } of choices()) {
      const { groups } = groupsFor(ids, shape);
      for (const hostPairs of [0, 1, 5, 64, 10_000]) {
        const { passing, rest } = new Balance({ passes: 'balanced', hostPairs }).share(groups);
        assert.deepEqual(all([...passing, ...rest]), all(groups));
        assert.ok(pairsOf(rest) <= hostPairs, `${pairsOf(rest)} pairs of at most ${hostPairs}`);
        const least = passing.at(-1)?.pairs.length ?? Number.POSITIVE_INFINITY;
        assert.ok(rest.every(({ pairs }) => pairs.length <= least));
      }
    }
  });

  test('what is slower gets less, as layers show it', () => {
    const groups = Array.from({ length: 64 }, (_, expert): Group => ({ expert, pairs: new Int32Array(8) }));
    const shareAfter = (took: { passMs: number; waitedMs: number }) => {
      const balance = new Balance({ passes: 'balanced', hostPairs: 10_000 });
      const first = balance.share(groups).passing.length;
      for (let layer = 0; layer < 50; layer++) {
        const { passing, rest } = balance.share(groups);
        balance.learn({ experts: passing.length, pairs: pairsOf(rest), ...took });
      }
      return [first, balance.share(groups).passing.length] as const;
    };
    const [first, slowCpu] = shareAfter({ passMs: 1, waitedMs: 500 });
    assert.ok(slowCpu > first, `${slowCpu} of 64 after a slow CPU, ${first} before`);
    const [, slowBus] = shareAfter({ passMs: 500, waitedMs: 0 });
    assert.ok(slowBus < first, `${slowBus} of 64 after a slow bus, ${first} before`);
  });

  test('none pass where none are absent', () => {
    for (const passes of ['all', 'balanced'] as const) {
      assert.deepEqual(new Balance({ passes, hostPairs: 0 }).share([]), { passing: [], rest: [] });
    }
  });
});

describe('rows that come to the host', () => {
  test('are those of the pairs, each once, in as few pieces as there are', () => {
    for (const { ids, ...shape } of choices()) {
      const { groups } = groupsFor(ids, shape);
      for (let count = 0; count <= groups.length; count += Math.max(1, groups.length >> 2)) {
        const some = groups.slice(0, count);
        const expected = new Set(some.flatMap(({ pairs }) => [...pairs].map((pair) => Math.floor(pair / shape.used))));
        const found = rowsOf(some, shape);
        assert.equal(found.count, expected.size);
        let at = 0;
        for (const [index, run] of found.runs.entries()) {
          const before = found.runs[index - 1];
          assert.ok(before === undefined || before.row + before.count < run.row, 'runs are apart');
          assert.equal(run.at, at);
          for (let i = 0; i < run.count; i++) {
            assert.ok(expected.delete(run.row + i));
            assert.equal(found.rowAt(run.row + i), at + i);
          }
          at += run.count;
        }
        assert.equal(expected.size, 0);
      }
    }
  });
});
