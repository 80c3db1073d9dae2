/** Which rows of a step count, how rows are shared, and what is counted of it. */

import assert from 'node:assert/strict';
import { suite, test } from 'node:test';
import { inRuns, stepOver } from './source.ts';
import { SpeculationStats } from './stats.ts';
import { acceptDrafts, shareRows } from './verify.ts';

suite('drafts', () => {
  const accept = (drafts: readonly number[], drawn: readonly (number | undefined)[]) => {
    const asked: number[] = [];
    const accepted = acceptDrafts(drafts, (row) => {
      asked.push(row);
      return drawn[row];
    });
    return { accepted, asked };
  };

  test('count as long as each is what was drawn, and no row behind that is looked at', () => {
    assert.deepEqual(accept([], [7]), { accepted: 0, asked: [0] });
    assert.deepEqual(accept([5, 6], [5, 6, 7]), { accepted: 2, asked: [0, 1, 2] });
    assert.deepEqual(accept([5, 6], [5, 9, 7]), { accepted: 1, asked: [0, 1] });
    assert.deepEqual(accept([5, 6], [6, 6, 7]), { accepted: 0, asked: [0] });
  });

  test('are no more wanted when the answer has ended', () => {
    assert.deepEqual(accept([5, 6], [5, undefined]), { accepted: 1, asked: [0, 1] });
    assert.deepEqual(accept([5], [undefined]), { accepted: 0, asked: [0] });
    assert.deepEqual(accept([], [undefined]), { accepted: 0, asked: [0] });
  });
});

test('rows are shared alike, the first row of each before any draft', () => {
  assert.deepEqual(shareRows([3], 64), [3]);
  assert.deepEqual(shareRows([3, 2, -1, 0], 64), [3, 2, 0, 0]);
  assert.deepEqual(shareRows(new Array(20).fill(7), 64), new Array(20).fill(2));
  assert.deepEqual(shareRows(new Array(33).fill(7), 64), new Array(33).fill(0));
  assert.deepEqual(shareRows(new Array(64).fill(7), 64), new Array(64).fill(0));
  for (let count = 1; count <= 64; count++) {
    const shared = shareRows(new Array(count).fill(7), 64);
    assert.ok(count + shared.reduce((sum, drafts) => sum + drafts, 0) <= 64);
  }
});

test('rows of several sequences are one step, the last of each wanted', () => {
  const [one, two] = [Int32Array.of(4), Int32Array.of(1, 2)];
  assert.deepEqual(
    stepOver('step', [
      { pageTable: one, first: 7, tokens: [11, 12, 13] },
      { pageTable: two, first: 0, tokens: [21] },
    ]),
    {
      mode: 'step',
      tokens: Int32Array.of(11, 12, 13, 21),
      positions: Int32Array.of(7, 8, 9, 0),
      sequences: Int32Array.of(0, 0, 0, 1),
      pageTables: [one, two],
      wanted: Int32Array.of(2, 3),
    },
  );
});

test('runs are cut where their rows are full', () => {
  const runs = (...rows: number[]) => inRuns(rows, (count) => count, 8);
  assert.deepEqual(runs(), []);
  assert.deepEqual(runs(3, 5, 1, 8, 2), [[3, 5], [1], [8], [2]]);
  assert.deepEqual(runs(8, 8), [[8], [8]]);
});

test('a draft counts as checked when all before it came true, and the answer had not ended', () => {
  const stats = new SpeculationStats(3);
  stats.add({ drafts: 3, accepted: 3, tokens: 4 });
  stats.add({ drafts: 3, accepted: 1, tokens: 2 });
  stats.add({ drafts: 1, accepted: 0, tokens: 1 });
  // The second draft was the end of the answer.
  stats.add({ drafts: 3, accepted: 2, tokens: 2 });
  stats.add({ drafts: 0, accepted: 0, tokens: 1 });
  const gate = { tokensPerSecond: {}, drafting: true };
  assert.deepEqual(stats.snapshot(gate), {
    steps: 4,
    tokens: 9,
    checked: [4, 3, 1],
    accepted: [3, 2, 1],
    plainSteps: 1,
    ...gate,
  });
  stats.reset();
  assert.deepEqual(stats.snapshot(gate), {
    steps: 0,
    tokens: 0,
    checked: [0, 0, 0],
    accepted: [0, 0, 0],
    plainSteps: 0,
    ...gate,
  });
});
