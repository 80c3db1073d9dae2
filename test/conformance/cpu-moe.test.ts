/**
 * Laws 3 and 4 for the mixture of experts on the CPU: every router, every mix of formats and every kind of shared expert
 * against the reference. Rows whose choice of experts hangs on a rounding are left out when the inputs are made; equal
 * scores stay, since they go to the lower index everywhere.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cpuFormat, cpuFormats, type Encoding } from '../../src/backend/cpu/formats.ts';
import { cpuRows } from '../../src/backend/cpu/rows.ts';
import { route } from '../../src/backend/reference/moe.ts';
import type { MoeSpec, RouterSpec } from '../../src/model/spec.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { decoded, gaussians, kindOfRow, nastyRow, random, randomWeight } from './support/blocks.ts';
import { checkRows, checkSameBits, nearByKind, PLAIN, RELAXED, ROWS, SMALL_ARENAS } from './support/compare.ts';
import { roundedMoe } from './support/rounded-moe.ts';
import { bytesOf, f32Weight, type Tiny, type TinyWeight, tinyGraph, tinyPlan } from './support/tiny-graph.ts';

type Part = 'router' | 'gate' | 'up' | 'down' | 'shared.gate' | 'shared.up' | 'shared.down' | 'shared.router';

interface MoeCase {
  readonly hidden: number;
  readonly moe: MoeSpec;
  /** By part; what is not named is F32. */
  readonly formats: Partial<Record<Part, FormatId>>;
  /** Added to the selection's scores. */
  readonly bias?: readonly number[];
}

/** Without integers anywhere only f32 sums are left, and routing weights within 2 ulp. */
const FLOAT_TOLERANCE = 2e-6;
/** Twice what one product with 16-bit activations may be off. */
const INT16_TOLERANCE = 2e-4;
/** Activations are rounded before the experts and within them: one case alone may stray beyond what holds over all. */
const CASE_SLACK = 1.25;
/** f32 sums in another order, and codes that were half way between two. */
const ROUNDED_TOLERANCE = 5e-4;

const [row] = cpuRows.filter(({ operation }) => operation === 'moe');
assert.ok(row !== undefined);
assert.equal(cpuRows.filter(({ operation }) => operation === 'moe').length, 1, 'a second row needs cases of its own');

const softmax: RouterSpec = { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 };
const sigmoid: RouterSpec = { gating: 'sigmoid', selectionBias: true, normalise: true, scale: 2.5 };
const q4kM: MoeCase['formats'] = { gate: 'Q4_K', up: 'Q4_K', down: 'Q6_K' };

function spec(experts: number, used: number, inner: number, more: Partial<MoeSpec> = {}): MoeSpec {
  return { experts, used, inner, activation: 'silu', router: softmax, ...more };
}

function spread(count: number): number[] {
  return [...gaussians(count, random(count)).map((x) => 0.2 * x)];
}

const cases: Readonly<Record<string, MoeCase>> = {
  'softmax, normalised': { hidden: 256, moe: spec(8, 2, 256), formats: q4kM },
  'softmax, not normalised, gated shared expert': {
    hidden: 256,
    moe: spec(60, 4, 96, { router: { ...softmax, normalise: false }, shared: { inner: 288, gated: true } }),
    formats: {
      gate: 'Q5_0',
      up: 'Q5_1',
      down: 'MXFP4',
      'shared.gate': 'Q8_0',
      'shared.up': 'IQ4_NL',
      'shared.down': 'Q4_0',
      'shared.router': 'BF16',
    },
  },
  'sigmoid, bias, scale, plain shared expert in another format': {
    hidden: 256,
    moe: spec(16, 4, 256, { router: sigmoid, shared: { inner: 67, gated: false } }),
    formats: {
      gate: 'Q4_K',
      up: 'Q6_K',
      down: 'Q8_0',
      'shared.gate': 'BF16',
      'shared.up': 'BF16',
      'shared.down': 'BF16',
    },
    bias: spread(16),
  },
  'NVFP4 routed with a BF16 shared expert, one of 64': {
    hidden: 192,
    moe: spec(64, 1, 64, { router: { ...softmax, normalise: false, scale: 1.5 }, shared: { inner: 65, gated: true } }),
    formats: {
      gate: 'NVFP4',
      up: 'NVFP4',
      down: 'NVFP4',
      'shared.gate': 'BF16',
      'shared.up': 'BF16',
      'shared.down': 'BF16',
    },
  },
  'softmax with a selection bias': {
    hidden: 64,
    moe: spec(8, 3, 33, { router: { ...softmax, selectionBias: true } }),
    formats: {},
    bias: spread(8),
  },
  'groups by their best': {
    hidden: 64,
    moe: spec(16, 4, 32, { router: { ...softmax, groups: { count: 4, used: 2, rankedBy: 'best' } } }),
    formats: { down: 'Q4_0' },
  },
  'groups by their two best': {
    hidden: 64,
    moe: spec(16, 4, 32, { router: { ...sigmoid, groups: { count: 4, used: 2, rankedBy: 'twoBest' } } }),
    formats: { up: 'Q4_1' },
    bias: spread(16),
  },
  'softmax groups by their two best': {
    hidden: 64,
    moe: spec(12, 2, 32, { router: { ...softmax, groups: { count: 3, used: 1, rankedBy: 'twoBest' } } }),
    formats: {},
  },
  'groups of one': {
    hidden: 32,
    moe: spec(4, 2, 32, {
      router: { ...sigmoid, normalise: false, groups: { count: 4, used: 3, rankedBy: 'twoBest' } },
    }),
    formats: {},
    bias: spread(4),
  },
  'sigmoid without a bias': {
    hidden: 100,
    moe: spec(5, 2, 20, { router: { ...sigmoid, selectionBias: false } }),
    formats: { gate: 'F16', up: 'BF16', down: 'F16' },
  },
  'one expert': { hidden: 32, moe: spec(1, 1, 32), formats: { gate: 'Q8_0', up: 'Q8_0', down: 'Q8_0' } },
  'all experts': { hidden: 64, moe: spec(4, 4, 64), formats: { gate: 'IQ4_NL', up: 'Q5_1', down: 'Q5_0' } },
  'experts that no row picks': {
    hidden: 64,
    moe: spec(8, 2, 64, { router: sigmoid }),
    formats: { gate: 'Q4_0' },
    bias: [9, -9, 9.1, -9, -9, 9.2, -9, -9],
  },
  'widths that fit nothing': {
    hidden: 37,
    moe: spec(7, 3, 67, { shared: { inner: 5, gated: true } }),
    formats: { router: 'BF16', gate: 'F16', up: 'F32', down: 'BF16', 'shared.down': 'F16' },
  },
  'f32 gate beside int8 up': { hidden: 256, moe: spec(6, 2, 256), formats: { gate: 'F32', up: 'Q6_K', down: 'Q4_K' } },
  'int8 gate beside BF16 up, and so the shared expert': {
    hidden: 256,
    moe: spec(6, 2, 256, { shared: { inner: 256, gated: false } }),
    formats: {
      gate: 'Q4_K',
      up: 'BF16',
      down: 'F16',
      'shared.gate': 'Q8_0',
      'shared.up': 'F16',
      'shared.down': 'Q5_K',
    },
  },
  'f32 gate and integer up in one arena, several units each': {
    hidden: 32,
    moe: spec(2, 1, 132),
    formats: { up: 'Q8_0', down: 'BF16' },
  },
  'integer gate and f32 up in one arena, several units each': {
    hidden: 32,
    moe: spec(2, 2, 132),
    formats: { gate: 'MXFP4', down: 'BF16' },
  },
  'an int8 router': {
    hidden: 256,
    moe: spec(8, 2, 64, { shared: { inner: 64, gated: true } }),
    formats: { router: 'Q6_K', 'shared.router': 'Q4_K' },
  },
};

function encodingOf(format: FormatId | undefined): Encoding {
  return cpuFormat(format ?? 'F32')?.activations as Encoding;
}

/** What the coarsest of a case's activations allow. */
function toleranceOf({ formats }: MoeCase): number {
  const encodings = Object.values(formats).map(encodingOf);
  if (encodings.includes('int8')) return row?.tolerance.relativeRms as number;
  return encodings.every((encoding) => encoding === 'f32') ? FLOAT_TOLERANCE : INT16_TOLERANCE;
}

function moeWeights({ hidden, moe, formats, bias }: MoeCase): Record<string, TinyWeight> {
  const { experts, inner, shared } = moe;
  const shapes: [Part, readonly number[]][] = [
    ['router', [experts, hidden]],
    ['gate', [experts, inner, hidden]],
    ['up', [experts, inner, hidden]],
    ['down', [experts, hidden, inner]],
  ];
  if (shared !== undefined) {
    shapes.push(
      ['shared.gate', [shared.inner, hidden]],
      ['shared.up', [shared.inner, hidden]],
      ['shared.down', [hidden, shared.inner]],
    );
    if (shared.gated) shapes.push(['shared.router', [1, hidden]]);
  }
  const weights: Record<string, TinyWeight> = {};
  for (const [index, [part, shape]] of shapes.entries()) {
    const format = formats[part] ?? 'F32';
    weights[`m.${part}`] = {
      format,
      shape,
      bytes: randomWeight(
        format,
        shape.reduce((a, b) => a * b, 1),
        100 + index,
      ),
    };
  }
  if (moe.router.selectionBias) weights['m.selectionBias'] = f32Weight(Float32Array.from(bias ?? []), experts);
  return weights;
}

/** Whether a row's experts stay the same when logits and scores move as far as arithmetic may move them. */
function isSettled(
  x: Float32Array,
  router: Float32Array,
  { moe, formats, bias }: MoeCase,
  next: () => number,
): boolean {
  const { experts, used } = moe;
  const logits = new Float32Array(experts);
  for (let e = 0; e < experts; e++)
    for (let i = 0; i < x.length; i++) logits[e] += (x[i] as number) * (router[e * x.length + i] as number);
  if (logits.every((logit) => logit === 0)) return true;
  const size = Math.sqrt(logits.reduce((sum, logit) => sum + logit * logit, 0) / experts);
  const slack = (encodingOf(formats.router) === 'f32' ? 1e-4 : 0.05) * size;
  // A softmax without a bias ranks logits, the others scores.
  const byScore = moe.router.gating === 'sigmoid' || moe.router.selectionBias;
  const choice = (distance: number) => {
    const moved = logits.map((logit) => logit + slack * distance * (2 * next() - 1));
    const scores = Float32Array.from(
      { length: experts },
      (_, e) => (bias?.[e] ?? 0) + 1e-5 * distance * (2 * next() - 1),
    );
    return [...route(moved, byScore ? scores : undefined, moe.router, used).experts].sort((a, b) => a - b).join();
  };
  const settled = choice(0);
  return Array.from({ length: 8 }, () => choice(1)).every((other) => other === settled);
}

function moeGraph(given: MoeCase): Tiny {
  const { hidden, moe } = given;
  const weights = moeWeights(given);
  const { format, bytes } = weights['m.router'] as TinyWeight;
  const router = decoded(format, bytes);
  const next = random(hidden + moe.experts);
  const x = new Float32Array(ROWS * hidden);
  let unsettled = 0;
  for (let t = 0; t < ROWS; t++) {
    const tries = Array.from({ length: 40 }, () => 0);
    const found = tries.some(() => {
      const candidate = nastyRow(kindOfRow(t), hidden, next);
      x.set(candidate, t * hidden);
      return isSettled(candidate, router, given, next);
    });
    if (found) continue;
    x.fill(0, t * hidden, (t + 1) * hidden);
    unsettled++;
  }
  // Saturated sigmoids are all alike: no huge or tiny row is ever settled there.
  assert.ok(unsettled <= (ROWS * 2) / 8, `${unsettled} of ${ROWS} rows had to be left out`);
  return tinyGraph({
    rows: ROWS,
    inputs: { x },
    operations: [{ kind: 'moe', layer: 0, input: 'x', prefix: 'm', moe, output: 'y' }],
    widths: { y: hidden },
    output: 'y',
    weights,
  });
}

/** Relative RMS of every int8 case. */
const errors: number[] = [];

async function check(what: string, given: MoeCase): Promise<void> {
  const tiny = moeGraph(given);
  const tolerance = toleranceOf(given);
  assert.equal(tinyPlan(tiny).operations.at(-1)?.rows.step, row?.name);
  const values = await checkRows(tiny, {
    names: ['y'],
    what,
    options: { features: RELAXED },
    tolerance: () => tolerance,
    slack: CASE_SLACK,
    onError: (error) => error > 0 && errors.push(error),
  });
  if (tolerance > FLOAT_TOLERANCE) checkRounded(given, tiny, values.y as Float32Array, what);
  await checkSameBits(tiny, values, { features: PLAIN }, `${what}, plain SIMD`);
  await checkSameBits(tiny, values, { arenaBytes: SMALL_ARENAS }, `${what}, arenas of 64 KiB`);
  await checkSameBits(tiny, values, { arenaBytes: 300_000, threads: 3 }, `${what}, three threads and a few arenas`);
}

/** Far closer than rounding allows: to the reference over the same rounded activations. */
function checkRounded({ moe, formats }: MoeCase, tiny: Tiny, found: Float32Array, what: string): void {
  const valuesOf = (name: string) => decoded(tiny.weights.get(name)?.format as FormatId, bytesOf(tiny, name));
  const cache = new Map<string, Float32Array>();
  const weight = (part: string) => {
    const known = cache.get(part) ?? valuesOf(`m.${part}`);
    cache.set(part, known);
    return known;
  };
  const expected = roundedMoe(valuesOf('table x'), moe, weight, (part) => encodingOf(formats[part as Part]));
  nearByKind(
    { y: found },
    { y: expected },
    { rows: ROWS, tolerance: () => ROUNDED_TOLERANCE, what: `${what}, over rounded activations` },
  );
}

describe('moe', () => {
  test('arenas of 64 KiB bring unlike matrices of a layer together in one that is not the first', () => {
    const mixed = Object.entries(cases).filter(([name]) => name.includes('in one arena'));
    assert.equal(mixed.length, 2);
    for (const [, given] of mixed) {
      const { weights } = tinyPlan(moeGraph(given), { arenaBytes: SMALL_ARENAS });
      const [gate, up] = ['m.gate', 'm.up'].map((part) => weights.find(({ name }) => name === part)?.arena);
      assert.ok(gate === up && gate !== 0);
    }
  });

  for (const [name, given] of Object.entries(cases)) test(name, () => check(name, given));

  for (const { id } of cpuFormats) {
    test(`${id} throughout`, () =>
      check(id, { hidden: 256, moe: spec(3, 2, 256), formats: { gate: id, up: id, down: id } }));
  }

  test('over all that int8 rounds, the stated tolerance holds', () => {
    assert.ok(errors.length > 10);
    const average = Math.sqrt(errors.reduce((sum, error) => sum + error * error, 0) / errors.length);
    assert.ok(average <= (row?.tolerance.relativeRms as number), `${average}`);
  });
});
