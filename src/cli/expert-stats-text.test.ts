import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ExpertStats, RunStats } from '../experts/stats.ts';
import { describeExpertStats, describeSnapshot } from './expert-stats-text.ts';

test('a table of layers, and what a run cost; prompts and decoding apart', () => {
  const stats = new RunStats([0, 1], 4);
  for (let step = 0; step < 2; step++) {
    stats.began('step', 1);
    stats.routed(0, [0, 1], { hits: 2, passed: 0 });
    stats.routed(1, [0, 2 + step], { hits: 1, passed: 0 });
    for (const layer of [0, 1]) stats.waited(layer, { roundTripMs: 0.055, cpuMs: layer, passMs: 0 });
    stats.ended();
    stats.brought(1, { experts: 1, bytes: 2_650_000, to: 'slots' });
  }
  const decoding = [
    'experts while decoding: 2 runs of 2 rows in all, 2 layers of 4 experts',
    'layer    hits  without a miss  uploads  uploaded  experts a step  load    entropy  of most   stops  round trip       CPU',
    '0      100.0%          100.0%        0       0 B             2.0   2.0  1.00 bits    50.0%  100.0%    0.055 ms  0.000 ms',
    '1       50.0%            0.0%        2   5.30 MB             2.0   2.0  1.50 bits    75.0%  100.0%    0.055 ms  1.000 ms',
    'all     75.0%           50.0%        2   5.30 MB             2.0   2.0  1.25 bits    62.5%  100.0%    0.055 ms  0.500 ms',
    '75.0% hits (6 hits, 2 misses); a run: 1.0 misses, 1.0 uploads of 2.65 MB in all',
    "a run stops 2 times: 0.11 ms (0.055 a stop) of round trips, 1.00 ms (0.500 a stop) of the CPU's part",
    '',
  ].join('\n');
  assert.equal(describeExpertStats({ ...stats.snapshot(), notCounted: [] }), decoding);

  stats.began('prompt', 4);
  stats.routed(0, [0, 1, 0, 1, 2, 1, 3, 1], { hits: 4, passed: 3 });
  stats.brought(0, { experts: 2, bytes: 5_300_000, to: 'run' });
  stats.waited(0, { roundTripMs: 1, passMs: 3, cpuMs: 2 });
  stats.ended();
  const text = describeExpertStats({ ...stats.snapshot(), notCounted: [2, 3, 4, 7] });
  assert.ok(text.includes(decoding));
  assert.match(text, /^experts of prompts: 1 run of 4 rows in all, 2 layers of 4 experts\n/);
  assert.match(
    text,
    /^50\.0% hits \(4 hits, 3 passed, 1 miss\); a run: 1\.0 misses, 0\.0 uploads of 0 B in all, 2\.0 experts of 5\.30 MB passed through$/m,
  );
  assert.match(
    text,
    /^a run stops 1 time: 1\.00 ms \(1\.000 a stop\) of round trips, 3\.00 ms \(3\.000 a stop\) of passing, /m,
  );
  assert.match(text, /\nnot counted: layers 2–4, 7, whose experts are all on the GPU, which tells nobody\n$/);
});

test('what says nothing is left out: no slots, no waits', () => {
  const stats = new RunStats([4], 8);
  stats.began('prompt', 2);
  stats.routed(4, [1, 2, 1, 3]);
  stats.ended();
  const text = describeExpertStats({ ...stats.snapshot(), notCounted: [] });
  assert.match(
    text,
    /^experts of prompts: 1 run of 2 rows in all, 1 layer of 8 experts\nlayer +experts a step +load +entropy +of most\n4 +3\.0 +4\.0 /,
  );
  assert.doesNotMatch(text, /decoding|hits|uploads|ms|not counted|NaN|Infinity/);
});

test('nothing run is said', () => {
  const stats = new RunStats([], 8).snapshot();
  assert.equal(describeExpertStats({ ...stats, notCounted: [] }), 'experts: no layer with experts has run\n');
});

test('how much of it was foreseen, where somebody foresaw', () => {
  const stats = new ExpertStats([1], 4);
  stats.routed(1, [0, 2]);
  stats.foreseen(1, { named: 2, used: 4, right: 1 });
  stats.endStep(1);
  assert.match(describeSnapshot('experts', stats.snapshot()), / foreseen\n1 .* 25\.0%\nall .* 25\.0%\n$/);
});
