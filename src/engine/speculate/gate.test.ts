/** The gate by a clock of its own: it keeps what does better, and goes on trying the other, less and less. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ThroughputGate, WINDOW_STEPS } from './gate.ts';

/** Runs so many windows, each step at its mode's rate; says by window whether it drafted. */
function windows(
  gate: ThroughputGate,
  count: number,
  rate: (drafting: boolean, window: number) => { readonly tokens: number; readonly ms: number },
): boolean[] {
  return Array.from({ length: count }, (_, window) => {
    const drafted = gate.drafts;
    for (let step = 0; step < WINDOW_STEPS; step++) {
      assert.equal(gate.drafts, drafted, 'a mode holds for a window');
      const { tokens, ms } = rate(drafted, window);
      gate.record({ drafted, tokens, elapsedMs: ms });
    }
    return drafted;
  });
}

const winning = (drafting: boolean) => (drafting ? { tokens: 3, ms: 20 } : { tokens: 1, ms: 10 });
const losing = (drafting: boolean) => (drafting ? { tokens: 2, ms: 30 } : { tokens: 1, ms: 10 });

test('both modes are measured once, then the better one stays', () => {
  const gate = new ThroughputGate();
  assert.deepEqual(gate.rates, { drafting: undefined, plain: undefined });
  assert.deepEqual(windows(gate, 6, winning), [true, false, true, true, true, true]);
  assert.deepEqual(gate.rates, { drafting: 150, plain: 100 });
  const other = new ThroughputGate();
  assert.deepEqual(windows(other, 6, losing), [true, false, false, false, false, false]);
});

test('drafting that loses is tried again, each time after twice as many windows, and not for ever', () => {
  const gate = new ThroughputGate();
  const drafted = windows(gate, 500, losing);
  const trials = drafted.flatMap((each, window) => (each ? [window] : []));
  const gaps = trials.slice(1).map((window, index) => window - (trials[index] as number));
  assert.deepEqual(gaps.slice(0, 6), [6, 9, 17, 33, 65, 65]);
  // Two thirds of the rate in one window of many: what the gate itself costs.
  const share = trials.length / drafted.length;
  assert.ok(share < 0.03, `${share} of all windows`);
});

test('what changes is seen: drafts that begin to pay are kept, and given up when they pay no more', () => {
  const gate = new ThroughputGate();
  windows(gate, 40, losing);
  const better = windows(gate, 120, winning);
  assert.ok(better.slice(-20).filter(Boolean).length >= 18);
  const worse = windows(gate, 120, losing);
  assert.ok(worse.slice(-20).filter(Boolean).length <= 2);
});

test('a step of the other mode counts as none of this one, and a clock that stands still as none at all', () => {
  const gate = new ThroughputGate();
  for (let step = 0; step < 100; step++) gate.record({ drafted: false, tokens: 1, elapsedMs: 1 });
  assert.deepEqual([gate.drafts, gate.rates], [true, { drafting: undefined, plain: undefined }]);
  for (let step = 0; step < 100; step++) gate.record({ drafted: true, tokens: 1, elapsedMs: 0 });
  assert.deepEqual([gate.drafts, gate.rates], [true, { drafting: undefined, plain: undefined }]);
});

test('one slow window among many changes nothing for long', () => {
  const gate = new ThroughputGate();
  windows(gate, 10, winning);
  windows(gate, 1, () => ({ tokens: 3, ms: 60 }));
  const after = windows(gate, 40, winning);
  assert.ok(after.filter(Boolean).length > 30);
});
