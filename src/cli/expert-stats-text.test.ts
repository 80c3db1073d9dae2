import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ExpertStats } from '../experts/stats.ts';
import { describeExpertStats } from './expert-stats-text.ts';

test('a table of layers, and what a step cost', () => {
  const stats = new ExpertStats([0, 1], 4);
  for (let step = 0; step < 2; step++) {
    stats.routed(0, [0, 1], 2);
    stats.routed(1, [0, 2 + step], 1);
    stats.uploaded(1, 2_650_000);
    for (const layer of [0, 1]) stats.waited(layer, { roundTripMs: 0.055, cpuMs: layer, gpuMs: 0.25 });
    stats.predicted(1, { predicted: 2, used: 1 });
    stats.endStep(1);
  }
  assert.equal(
    describeExpertStats(stats.snapshot()),
    [
      'experts: 2 steps of 2 rows, 2 layers of 4 experts',
      'layer    hits  without a miss  uploads  uploaded  experts a step  load    entropy  of most  round trip       CPU       GPU  foreseen',
      '0      100.0%          100.0%        0       0 B             2.0   2.0  1.00 bits    50.0%    0.055 ms  0.000 ms  0.250 ms         –',
      '1       50.0%            0.0%        2   5.30 MB             2.0   2.0  1.50 bits    75.0%    0.055 ms  1.000 ms  0.250 ms     50.0%',
      'all     75.0%           50.0%        2   5.30 MB             2.0   2.0  1.25 bits    62.5%    0.055 ms  0.500 ms  0.250 ms     50.0%',
      '6 hits and 2 misses; a step: 1.0 misses, 1.0 uploads, 2.65 MB uploaded',
      "a step waits 0.11 ms for round trips, 1.00 ms for the CPU's part and 0.50 ms for the GPU's",
      '',
    ].join('\n'),
  );
});

test('what says nothing is left out: no slots, no waits, no predictions', () => {
  const stats = new ExpertStats([4], 8);
  stats.routed(4, [1, 2, 1, 3]);
  stats.endStep(2);
  const text = describeExpertStats(stats.snapshot());
  assert.match(
    text,
    /^experts: 1 step of 2 rows, 1 layer of 8 experts\nlayer +experts a step +load +entropy +of most\n4 +3\.0 +4\.0 /,
  );
  assert.doesNotMatch(text, /hits|uploads|ms|foreseen|NaN|Infinity/);
});

test('nothing run is said', () => {
  assert.equal(describeExpertStats(new ExpertStats([], 8).snapshot()), 'experts: no layer with experts has run\n');
});
