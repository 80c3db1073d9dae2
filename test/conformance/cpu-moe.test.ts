/**
 * Laws 3 and 4 for the mixture of experts on the CPU: every router, every mix of formats and every kind of shared expert
 * against the reference.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cpuFormat, cpuFormats, type Encoding } from '../../src/backend/cpu/formats.ts';
import { cpuRows } from '../../src/backend/cpu/rows.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { decoded } from './support/blocks.ts';
import { checkRows, checkSameBits, nearByKind, PLAIN, RELAXED, ROWS, SMALL_ARENAS } from './support/compare.ts';
import { type MoeCase, moeCases, moeGraph, type Part, spec, zeroExpertCases } from './support/moe-cases.ts';
import { roundedMoe } from './support/rounded-moe.ts';
import { bytesOf, type Tiny, tinyPlan } from './support/tiny-graph.ts';

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

function encodingOf(format: FormatId | undefined): Encoding {
  return cpuFormat(format ?? 'F32')?.activations as Encoding;
}

/** What the coarsest of a case's activations allow. */
function toleranceOf({ formats }: MoeCase): number {
  const encodings = Object.values(formats).map(encodingOf);
  if (encodings.includes('int8')) return row?.tolerance.relativeRms as number;
  return encodings.every((encoding) => encoding === 'f32') ? FLOAT_TOLERANCE : INT16_TOLERANCE;
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
function checkRounded({ moe, formats, routerInput }: MoeCase, tiny: Tiny, found: Float32Array, what: string): void {
  const valuesOf = (name: string) => decoded(tiny.weights.get(name)?.format as FormatId, bytesOf(tiny, name));
  const cache = new Map<string, Float32Array>();
  const weight = (part: string) => {
    const known = cache.get(part) ?? valuesOf(`m.${part}`);
    cache.set(part, known);
    return known;
  };
  const expected = roundedMoe(
    valuesOf('table x'),
    moe,
    weight,
    (part) => encodingOf(formats[part as Part]),
    routerInput ? valuesOf('table r') : undefined,
  );
  nearByKind(
    { y: found },
    { y: expected },
    { rows: ROWS, tolerance: () => ROUNDED_TOLERANCE, what: `${what}, over rounded activations` },
  );
}

describe('moe', () => {
  test('arenas of 64 KiB bring unlike matrices of a layer together in one that is not the first', () => {
    const mixed = Object.entries(moeCases).filter(([name]) => name.includes('in one arena'));
    assert.equal(mixed.length, 2);
    for (const [, given] of mixed) {
      const { weights } = tinyPlan(moeGraph(given), { arenaBytes: SMALL_ARENAS });
      const [gate, up] = ['m.gate', 'm.up'].map((part) => weights.find(({ name }) => name === part)?.arena);
      assert.ok(gate === up && gate !== 0);
    }
  });

  for (const [name, given] of Object.entries({ ...moeCases, ...zeroExpertCases })) test(name, () => check(name, given));

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
