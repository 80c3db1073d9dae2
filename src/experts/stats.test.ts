import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InternalError } from '../errors.ts';
import { ExpertStats, entropyOf, RunStats, totalOf } from './stats.ts';
import { type ExpertWatcher, watchedBy } from './watch.ts';

test('what was counted is in the snapshot, which crosses a port', () => {
  const stats = new ExpertStats([3, 5], 4);
  // Two rows of two picks each, then one row.
  stats.routed(3, [0, 1, 1, 2], { hits: 2, passed: 1 });
  stats.brought(3, { experts: 1, bytes: 1000, to: 'slots' });
  stats.brought(3, { experts: 2, bytes: 1500, to: 'run' });
  stats.waited(3, { roundTripMs: 0.25, passMs: 0.5, cpuMs: 1 });
  stats.foreseen(3, { named: 4, used: 3, right: 2 });
  // Of a step for which nothing was named nothing is counted.
  stats.foreseen(3, { named: 0, used: 3, right: 0 });
  stats.pinned(3, 2);
  stats.routed(5, [3, 2, 3, 2]);
  stats.endStep(2);
  stats.routed(3, [1, 0], { hits: 2, passed: 0 });
  stats.waited(3, { roundTripMs: 0.25, passMs: 0.5, cpuMs: 0 });
  stats.routed(5, [3, 2]);
  stats.endStep(1);

  const snapshot = structuredClone(stats.snapshot());
  assert.deepEqual(snapshot, stats.snapshot());
  assert.deepEqual([snapshot.experts, snapshot.steps, snapshot.rows], [4, 2, 3]);
  const [slotted, slotless] = snapshot.layers;
  assert.deepEqual(slotted, {
    layer: 3,
    steps: 2,
    picks: 6,
    hits: 4,
    passed: 1,
    misses: 1,
    wholeSteps: 1,
    stops: 2,
    uniqueExperts: 5,
    // Picks are 2, 3, 1 and 0: most has 3 where the mean has 1.5.
    load: 2,
    busierHalfShare: 5 / 6,
    entropyBits: entropyOf(Float64Array.of(2, 3, 1)),
    entropyShare: entropyOf(Float64Array.of(2, 3, 1)) / 2,
    uploads: 1,
    uploadedBytes: 1000,
    passes: 2,
    passedBytes: 1500,
    foreseen: { named: 4, used: 3, right: 2 },
    pinned: 2,
    wait: { roundTripMs: 0.5, passMs: 1, cpuMs: 1 },
  });
  assert.deepEqual([slotless.hits, slotless.misses, slotless.wholeSteps, slotless.uniqueExperts], [0, 0, 0, 4]);
  const total = totalOf(snapshot);
  assert.deepEqual([total.picks, total.hits, total.uniqueExperts, total.load], [12, 4, 9, 2]);
  assert.equal(total.entropyBits, (slotted.entropyBits + 1) / 2);
});

test('entropy is that of the distribution: 0 for one expert, log2 for all alike', () => {
  assert.equal(entropyOf(Float64Array.of(7, 0, 0, 0)), 0);
  assert.equal(entropyOf(new Float64Array(128).fill(3)), 7);
  assert.equal(entropyOf(Float64Array.of(1, 1, 2)), 1.5);
  assert.equal(entropyOf(new Float64Array(4)), 0);
});

test('nothing counted is nothing, not NaN', () => {
  const snapshot = new ExpertStats([0], 8).snapshot();
  const { foreseen, wait, ...counts } = totalOf(snapshot);
  for (const value of Object.values({ ...snapshot.layers[0], ...counts, ...foreseen, ...wait, foreseen: 0, wait: 0 })) {
    assert.equal(value, 0);
  }
});

test('what is pinned still is when counts begin anew, in prompts and steps alike', () => {
  const stats = new RunStats([0, 1], 8);
  stats.pinned(1, 3);
  stats.reset();
  for (const { layers } of Object.values(stats.snapshot()))
    assert.deepEqual(
      layers.map(({ pinned }) => pinned),
      [0, 3],
    );
});

test('a layer that nobody counts is an internal error', () => {
  assert.throws(() => new ExpertStats([0], 8).routed(1, [0]), InternalError);
});

/** A prompt of two rows that passes an expert, then steps of one row. */
function tell(watcher: ExpertWatcher, steps: number): void {
  watcher.began('prompt', 2);
  watcher.routed(0, [0, 1, 1, 2], { hits: 1, passed: 2 });
  watcher.brought(0, { experts: 1, bytes: 10, to: 'run' });
  watcher.ended();
  watcher.brought(0, { experts: 3, bytes: 30, to: 'slots' });
  for (let step = 0; step < steps; step++) {
    watcher.began('step', 1);
    watcher.routed(0, [3, 0], { hits: 2, passed: 0 });
    watcher.waited(0, { roundTripMs: 1, passMs: 0, cpuMs: 2 });
    watcher.ended();
  }
}

test('prompts and steps are counted apart, uploads after a run with that run, and a reset forgets all', () => {
  const stats = new RunStats([0], 4);
  tell(stats, 3);
  const { prompt, step } = stats.snapshot();
  assert.deepEqual([prompt.steps, prompt.rows, step.steps, step.rows], [1, 2, 3, 3]);
  const counts = ({ layers: [layer] }: typeof prompt) => [layer.hits, layer.passed, layer.misses, layer.uploads];
  assert.deepEqual(counts(prompt), [1, 2, 1, 3]);
  assert.deepEqual(counts(step), [6, 0, 0, 0]);
  assert.deepEqual(step.layers[0].wait, { roundTripMs: 3, passMs: 0, cpuMs: 6 });
  stats.reset();
  assert.deepEqual(stats.snapshot(), new RunStats([0], 4).snapshot());
});

test('a run that failed is no step', () => {
  const stats = new RunStats([0], 4);
  stats.began('step', 1);
  stats.routed(0, [1, 2]);
  tell(stats, 1);
  assert.deepEqual([stats.snapshot().step.steps, stats.snapshot().step.rows], [1, 1]);
});

test('several watchers hear the same', () => {
  const [one, two] = [new RunStats([0], 4), new RunStats([0], 4)];
  assert.equal(watchedBy([]), undefined);
  assert.equal(watchedBy([one]), one);
  tell(watchedBy([one, two]) as ExpertWatcher, 2);
  assert.deepEqual(one.snapshot(), two.snapshot());
  assert.equal(one.snapshot().step.steps, 2);
});
