/** What each scaling does to frequencies, told by its definition rather than by its code. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InternalError } from '../errors.ts';
import { ropeAngles, ropeTable, yarnMagnitude } from './rope.ts';
import type { RopeScaling, RopeSpec } from './spec.ts';

function spec(scaling: RopeScaling, dimensions = 8, base = 10_000): RopeSpec {
  return { pairing: 'half', dimensions, base, scaling };
}

const yarn = {
  kind: 'yarn',
  factor: 4,
  originalContext: 2048,
  betaFast: 32,
  betaSlow: 1,
  magnitude: yarnMagnitude(4),
  truncate: true,
} as const;

test('plain: base to the power of minus 2j/dimensions, in f32', () => {
  const { inverseFrequencies, magnitude } = ropeTable(spec({ kind: 'none' }));
  assert.deepEqual([...inverseFrequencies], [1, 0.1, 0.01, 0.001].map(Math.fround));
  assert.equal(magnitude, 1);
});

test('linear divides every frequency, factors each its own', () => {
  const linear = ropeTable(spec({ kind: 'linear', factor: 4 }));
  assert.deepEqual([...linear.inverseFrequencies], [0.25, 0.025, 0.0025, 0.00025].map(Math.fround));
  const factors = ropeTable(spec({ kind: 'factors' }), Float32Array.of(1, 2, 4, 8));
  assert.deepEqual([...factors.inverseFrequencies], [1, 0.05, 0.0025, 0.000125].map(Math.fround));
});

test('factors without the scaling, the scaling without factors, or too few of them are refused', () => {
  assert.throws(() => ropeTable(spec({ kind: 'factors' })), InternalError);
  assert.throws(() => ropeTable(spec({ kind: 'none' }), new Float32Array(4)), InternalError);
  assert.throws(() => ropeTable(spec({ kind: 'factors' }), new Float32Array(3)), InternalError);
});

test('llama3: short waves stay, long ones slow down by the factor, none is faster than before or slower than that', () => {
  const scaling = {
    kind: 'llama3',
    factor: 8,
    lowFrequencyFactor: 1,
    highFrequencyFactor: 4,
    originalContext: 8192,
  } as const;
  const plain = ropeTable(spec({ kind: 'none' }, 128, 500_000)).inverseFrequencies;
  const scaled = ropeTable(spec(scaling, 128, 500_000)).inverseFrequencies;
  let kept = 0;
  let slowed = 0;
  plain.forEach((frequency, pair) => {
    const turns = (8192 * frequency) / (2 * Math.PI);
    const ratio = frequency / scaled[pair];
    if (turns > 4) {
      kept++;
      assert.equal(scaled[pair], frequency);
    } else if (turns < 1) {
      slowed++;
      assert.ok(Math.abs(ratio - 8) < 1e-6);
    } else {
      assert.ok(ratio > 1 && ratio < 8, `pair ${pair} is slowed by ${ratio}`);
    }
  });
  assert.ok(kept > 20 && slowed > 20 && kept + slowed < 64);
});

test('yarn: pairs that turn often stay, pairs that hardly turn slow down, and all values grow a little', () => {
  const plain = ropeTable(spec({ kind: 'none' }, 128)).inverseFrequencies;
  const { inverseFrequencies, magnitude } = ropeTable(spec(yarn, 128));
  // 2048 positions are 32 turns at pair 16.1 and one turn at pair 40.2 (log base of 2048 / (turns · 2π), times 64).
  const bound = (turns: number) => (64 * Math.log(2048 / (turns * 2 * Math.PI))) / Math.log(10_000);
  inverseFrequencies.forEach((frequency, pair) => {
    const ratio = plain[pair] / frequency;
    if (pair <= Math.floor(bound(32))) assert.equal(ratio, 1);
    else if (pair >= Math.ceil(bound(1))) assert.ok(Math.abs(ratio - 4) < 1e-6);
    else assert.ok(ratio > 1 && ratio < 4, `pair ${pair} is slowed by ${ratio}`);
  });
  assert.ok(Math.abs(magnitude - (0.1 * Math.log(4) + 1)) < 1e-12);
  assert.equal(yarnMagnitude(1), 1);
});

test('yarn without truncation goes over at the very place, not at the next whole pair', () => {
  const truncated = ropeTable(spec(yarn, 128)).inverseFrequencies;
  const exact = ropeTable(spec({ ...yarn, truncate: false }, 128)).inverseFrequencies;
  assert.equal(exact[5], truncated[5]);
  assert.equal(exact[60], truncated[60]);
  assert.notEqual(exact[30], truncated[30]);
});

test('yarn bounds that fall on one pair divide by no zero', () => {
  const { inverseFrequencies } = ropeTable(spec({ ...yarn, betaFast: 1, betaSlow: 1, truncate: false }));
  assert.ok(inverseFrequencies.every((frequency) => Number.isFinite(frequency) && frequency > 0));
});

test('angles are f32 products, written from the offset on, with the magnitude', () => {
  const table = ropeTable(spec(yarn, 64));
  const cos = new Float32Array(40).fill(9);
  const sin = new Float32Array(40).fill(9);
  ropeAngles(table, 6001, { cos, sin, offset: 4 });
  table.inverseFrequencies.forEach((frequency, pair) => {
    const angle = Math.fround(6001 * frequency);
    assert.equal(cos[4 + pair], Math.fround(Math.cos(angle) * table.magnitude));
    assert.equal(sin[4 + pair], Math.fround(Math.sin(angle) * table.magnitude));
  });
  assert.deepEqual([cos[3], sin[3], cos[36], sin[36]], [9, 9, 9, 9]);
});
