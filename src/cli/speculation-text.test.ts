import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RunStats } from '../experts/stats.ts';
import { describeSpeculation, ratesOf } from './speculation-text.ts';

const stats = {
  source: 'mtp',
  drafts: 2,
  steps: 10,
  tokens: 27,
  checked: [10, 9],
  accepted: [9, 8],
  plainSteps: 1,
  tokensPerSecond: { drafting: 123.45, plain: 100 },
  drafting: true,
} as const;

test('tokens a step, what came true by position, experts, and whether it pays', () => {
  const experts = new RunStats([0, 1], 4);
  for (const ids of [
    [0, 1, 0, 2],
    [0, 1, 0, 1],
  ]) {
    experts.began('step', 2);
    experts.routed(0, ids);
    experts.routed(1, ids);
    experts.ended();
  }
  const rates = ratesOf(stats, experts.snapshot().step);
  assert.deepEqual(rates, { tokensPerStep: 2.7, expertsPerStep: 2.5 });
  assert.equal(
    describeSpeculation({ ...stats, ...rates }),
    [
      'drafts: mtp, up to 2 tokens; 2.70 tokens a step in 10 steps, 1 step without',
      'accepted: draft 1 90% of 10, draft 2 89% of 9',
      'experts a step: 2.5 of each layer',
      'measured: 123.5 tokens/s with drafts, 100.0 tokens/s without; now with drafts',
      '',
    ].join('\n'),
  );
});

test('what is not known is left out', () => {
  const none = { ...stats, steps: 0, tokens: 0, checked: [0, 0], accepted: [0, 0], plainSteps: 3, tokensPerSecond: {} };
  assert.deepEqual(ratesOf(none, undefined), {});
  assert.equal(describeSpeculation(none), 'drafts: mtp, up to 2 tokens; no step has had any, 3 steps without\n');
  const lost = { ...stats, drafting: false, tokensPerSecond: { plain: 10 } };
  assert.match(describeSpeculation(lost), /^measured: 10\.0 tokens\/s without; now without$/m);
});
