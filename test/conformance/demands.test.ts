/**
 * Law 2 for what operations ask beyond their plain form: every demand against every row of every device. A row that does not
 * name a demand refuses it by name, before its own bounds are looked at; what a row of the CPU names, the suites beside this
 * one run.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cpuRows } from '../../src/backend/cpu/rows.ts';
import { gpuRows } from '../../src/backend/gpu/rows.ts';
import { answerOf } from '../../src/backend/kernel.ts';
import { referenceRows } from '../../src/backend/reference/rows.ts';
import { InternalError } from '../../src/errors.ts';
import { type Demand, demandsOf } from '../../src/model/demands.ts';
import type { Operation } from '../../src/model/graph.ts';
import type { MoeSpec, RouterSpec } from '../../src/model/spec.ts';
import { attentionOver, beyondPlain, inputsOf, jointShapes } from './support/attention-cases.ts';
import { moeCases, moeGraph, zeroExpertCases } from './support/moe-cases.ts';
import { requestFor } from './support/requests.ts';

const base = { layer: 0, output: 'y' } as const;
const router: RouterSpec = { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 };
const moe: MoeSpec = { experts: 4, used: 2, inner: 32, activation: 'silu', router };
const clamped = { kind: 'clampedSwiglu', alpha: 1.702, limit: 7 } as const;
const heads = { heads: 2, kvHeads: 1, headDim: 4, valueDim: 4, scale: 0.5 } as const;

const plain = {
  embed: { ...base, kind: 'embed', weight: 'w' },
  norm: { ...base, kind: 'norm', input: 'x', weight: 'w', epsilon: 1e-5, group: 4 },
  rope: {
    ...base,
    kind: 'rope',
    input: 'x',
    headDim: 4,
    rope: { pairing: 'half', dimensions: 2, base: 1e4, scaling: { kind: 'none' } },
  },
  scale: { ...base, kind: 'scale', input: 'x', factor: 2 },
  head: { ...base, kind: 'head', input: 'x', weight: 'w' },
  attention: { ...base, kind: 'attention', query: 'q', key: 'k', value: 'v', ...heads },
  glu: { ...base, kind: 'glu', gate: 'a', up: 'b', activation: 'silu' },
  gated: { ...base, kind: 'gated', input: 'x', gate: 'a', up: 'b', activation: 'silu' },
  moe: { ...base, kind: 'moe', input: 'x', prefix: 'm', moe },
  experts: { ...base, kind: 'experts', input: 'x', prefix: 'm', moe },
} satisfies Record<string, Operation>;

function withMoe(change: Partial<MoeSpec>): readonly Operation[] {
  const changed = { ...moe, ...change };
  return [
    { ...plain.moe, moe: changed },
    { ...plain.experts, moe: changed },
  ];
}

const activated = (activation: MoeSpec['activation']): readonly Operation[] => [
  { ...plain.glu, activation },
  { ...plain.gated, activation },
  ...withMoe({ activation }),
];

/** What has each demand, and nothing else beyond its plain form: one operation of every kind that can. */
const asking: Readonly<Record<Demand, readonly Operation[]>> = {
  'a scale on embeddings': [{ ...plain.embed, scale: 8 }],
  'norms without weights': [{ ...base, kind: 'norm', input: 'x', epsilon: 1e-5, group: 4 }],
  'a norm of part of a row': [{ ...plain.norm, rest: 2 }],
  'a scale on part of a row': [{ ...plain.scale, rest: 2 }],
  'a rotation of the end of a head': [{ ...plain.rope, from: 2 }],
  'a soft cap on logits': [{ ...plain.head, softcap: 30 }],
  'a window of attention': [{ ...plain.attention, reach: { kind: 'window', length: 8 } }],
  'chunks of attention': [{ ...plain.attention, reach: { kind: 'chunk', length: 8 } }],
  'attention sinks': [{ ...plain.attention, sinks: 's' }],
  'attention temperature': [{ ...plain.attention, temperature: { length: 8, scale: 0.1 } }],
  'values that are the beginnings of their keys': [{ ...base, kind: 'attention', query: 'q', key: 'k', ...heads }],
  GELU: activated('geluTanh'),
  'clamped SwiGLU': activated(clamped),
  'biases of experts': withMoe({ biases: true }),
  // Single experts have nothing to do with how they were chosen.
  "a router's bias": withMoe({ router: { ...router, bias: true } }).slice(0, 1),
  "a router's own input": [{ ...plain.moe, routerInput: 'r' }],
  'scales of experts': withMoe({ router: { ...router, expertScale: true } }).slice(0, 1),
  'weights on the inputs of experts': withMoe({ router: { ...router, weighsInput: true } }),
  'experts that give a row as it is': withMoe({ zeroExperts: 2 }),
  'scales of matrices of experts': withMoe({ scaled: true }),
};

const demands = Object.keys(asking) as Demand[];

test('a plain operation demands nothing, and each other one what it is said to', () => {
  for (const operation of Object.values(plain)) assert.deepEqual(demandsOf(operation), []);
  for (const demand of demands) {
    assert.ok(asking[demand].length > 0);
    for (const operation of asking[demand]) assert.deepEqual(demandsOf(operation), [demand], operation.kind);
  }
});

test('a field that nobody has described is an error, not a plain operation', () => {
  const groups = { count: 2, used: 1, rankedBy: 'best', weighted: true } as const;
  for (const operation of [
    { ...plain.norm, cubed: true },
    { ...plain.moe, moe: { ...moe, halved: 2 } },
    { ...plain.moe, moe: { ...moe, router: { ...router, groups } } },
    { ...plain.experts, doubled: true },
  ]) {
    assert.throws(() => demandsOf(operation), InternalError);
  }
});

for (const [device, rows] of [
  ['reference', referenceRows],
  ['cpu', cpuRows],
  ['gpu', gpuRows],
] as const) {
  describe(device, () => {
    for (const demand of demands) {
      test(`${demand}: served by name or refused by name`, () => {
        for (const operation of asking[demand]) {
          for (const row of rows.filter(({ operation: kind }) => kind === operation.kind)) {
            // A row that would take anything, so that nothing but the demand can refuse.
            const eager = { ...row, accepts: () => true as const };
            const [mode] = row.modes as readonly ['prompt' | 'step'];
            const answer = answerOf(eager, requestFor(operation, { mode }));
            assert.equal(answer, row.serves?.includes(demand) ? true : `does not serve ${demand}`, row.name);
          }
        }
      });
    }

    test('no row names what its operation cannot ask', () => {
      for (const { name, operation, serves = [] } of rows) {
        for (const demand of serves) {
          assert.ok(
            asking[demand].some(({ kind }) => kind === operation),
            `${name}: ${demand}`,
          );
        }
      }
    });
  });
}

test('the reference serves every demand of every operation that it runs', () => {
  for (const { operation, serves = [] } of referenceRows) {
    const can = demands.filter((demand) => asking[demand].some(({ kind }) => kind === operation));
    const refused =
      operation === 'experts' ? ['weights on the inputs of experts', 'experts that give a row as it is'] : [];
    assert.deepEqual(
      can.filter((demand) => !serves.includes(demand)),
      refused,
      operation,
    );
  }
});

test('what the CPU serves of attention and of experts, its suites run', () => {
  const attention = Object.values(beyondPlain).map((beyond) => {
    const shape = { heads: 1, kvHeads: 1, headDim: 4, valueDim: 4 };
    return attentionOver(shape, inputsOf(shape, 0), beyond);
  });
  const joint = jointShapes.map((shape) => attentionOver(shape, inputsOf(shape, 0)));
  const layers = Object.values({ ...moeCases, ...zeroExpertCases }).map(moeGraph);
  const run = new Set(
    [...attention, ...joint, ...layers].flatMap(({ graph }) =>
      graph.operations.flatMap((operation) => demandsOf(operation).map((demand) => `${operation.kind}: ${demand}`)),
    ),
  );
  for (const { name, operation, serves = [] } of cpuRows) {
    if (operation !== 'attention' && operation !== 'moe') continue;
    for (const demand of serves) assert.ok(run.has(`${operation}: ${demand}`), `${name}: nothing runs ${demand}`);
  }
});
