import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InternalError } from '../errors.ts';
import { ExpertStats, entropyOf, totalOf } from './stats.ts';

test('what was counted is in the snapshot, which crosses a port', () => {
  const stats = new ExpertStats([3, 5], 4);
  // Two rows of two picks each, then one row.
  stats.routed(3, [0, 1, 1, 2], 3);
  stats.uploaded(3, 1000);
  stats.waited(3, { roundTripMs: 0.25, cpuMs: 1, gpuMs: 0.5 });
  stats.predicted(3, { predicted: 4, used: 3 });
  stats.routed(5, [3, 2, 3, 2]);
  stats.endStep(2);
  stats.routed(3, [1, 0], 2);
  stats.waited(3, { roundTripMs: 0.25, cpuMs: 0, gpuMs: 0.5 });
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
    hits: 5,
    misses: 1,
    wholeSteps: 1,
    uniqueExperts: 5,
    // Picks are 2, 3, 1 and 0: most has 3 where the mean has 1.5.
    load: 2,
    busierHalfShare: 5 / 6,
    entropyBits: entropyOf(Float64Array.of(2, 3, 1)),
    entropyShare: entropyOf(Float64Array.of(2, 3, 1)) / 2,
    uploads: 1,
    uploadedBytes: 1000,
    predicted: 4,
    predictedUsed: 3,
    wait: { roundTripMs: 0.5, cpuMs: 1, gpuMs: 1 },
  });
  assert.deepEqual([slotless.hits, slotless.misses, slotless.wholeSteps, slotless.uniqueExperts], [0, 0, 0, 4]);
  const total = totalOf(snapshot);
  assert.deepEqual([total.picks, total.hits, total.uniqueExperts, total.load], [12, 5, 9, 2]);
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
  for (const value of Object.values({ ...snapshot.layers[0], ...totalOf(snapshot), wait: 0 })) assert.equal(value, 0);
});

test('a layer that nobody counts is an internal error', () => {
  assert.throws(() => new ExpertStats([0], 8).routed(1, [0]), InternalError);
});
