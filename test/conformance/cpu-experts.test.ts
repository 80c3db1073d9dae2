/**
 * Single experts on the CPU: the bits of the mixture of experts for each pair of a row and an expert, near the reference,
 * and the same bits whatever pairs are beside it.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { ExpertRunner } from '../../src/backend/backend.ts';
import { cpuFormat, cpuFormats, type Encoding } from '../../src/backend/cpu/formats.ts';
import { cpuRows } from '../../src/backend/cpu/rows.ts';
import { route } from '../../src/backend/reference/moe.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { decoded, kindOfRow, random } from './support/blocks.ts';
import { near, nearByKind, PLAIN, RELAXED, ROWS, SMALL_ARENAS, sameBits, type Values } from './support/compare.ts';
import { computed, expertRows, expertsTiny, type Pair, pairsByRank, withExperts } from './support/expert-cases.ts';
import { type MoeCase, moeCases, moeGraph, type Part, spec } from './support/moe-cases.ts';
import { roundedExpert } from './support/rounded-moe.ts';
import { bytesOf, onCpu, rowsStep, type Tiny, tinyPlan } from './support/tiny-graph.ts';

/** As in `cpu-moe.test.ts`, and for the same reasons. */
const FLOAT_TOLERANCE = 2e-6;
const INT16_TOLERANCE = 2e-4;
const ROUNDED_TOLERANCE = 5e-4;
const CASE_SLACK = 1.25;

const [row] = cpuRows.filter(({ operation }) => operation === 'experts');
assert.ok(row !== undefined);

const routed = ['gate', 'up', 'down'] as const;

function encodingOf(format: FormatId | undefined): Encoding {
  return cpuFormat(format ?? 'F32')?.activations as Encoding;
}

function toleranceOf({ formats }: MoeCase): number {
  const encodings = routed.map((part) => encodingOf(formats[part]));
  if (encodings.includes('int8')) return row?.tolerance.relativeRms as number;
  return encodings.every((encoding) => encoding === 'f32') ? FLOAT_TOLERANCE : INT16_TOLERANCE;
}

/** Relative RMS of every int8 case. */
const errors: number[] = [];

/** By rank: what the device makes of a pair of every row, all in one call. */
function byRank(experts: ExpertRunner, given: MoeCase, rows: Float32Array): Values {
  const { hidden } = given;
  const ranks = pairsByRank(rows.length / hidden, given);
  const all = computed(experts, rows, hidden, ranks.flat());
  const each = all.length / ranks.length;
  return Object.fromEntries(ranks.map((_, rank) => [`rank ${rank}`, all.subarray(rank * each, (rank + 1) * each)]));
}

/** Pairs in calls of all sizes: of one row and of many, some more than once, in any order. */
function callsOf(pairs: readonly Pair[], next: () => number): Pair[][] {
  const pick = () => pairs[Math.floor(next() * pairs.length)] as Pair;
  const some = (count: number) => Array.from({ length: count }, pick);
  const alone = pick();
  const ofOneRow = pairs.filter((pair) => pair.row === alone.row);
  return [
    [alone],
    ofOneRow,
    ofOneRow.toReversed(),
    // More pairs of one row than the model ever uses.
    [...ofOneRow, ...ofOneRow, ...ofOneRow],
    some(2),
    some(3),
    some(7),
    some(64),
    some(200),
    pairs.toReversed(),
  ];
}

function checkNeighbours(
  experts: ExpertRunner,
  given: MoeCase,
  rows: Float32Array,
  expected: Values,
  what: string,
): void {
  const { hidden } = given;
  const pairs = pairsByRank(rows.length / hidden, given).flat();
  const all = Object.values(expected);
  const ofPair = ({ row, expert }: Pair) => {
    const rank = pairsByRank(rows.length / hidden, given).findIndex((own) => own[row]?.expert === expert);
    return (all[rank] as Float32Array).subarray(row * hidden, (row + 1) * hidden);
  };
  for (const [index, call] of callsOf(pairs, random(hidden)).entries()) {
    const found = computed(experts, rows, hidden, call);
    assert.equal(found.length, call.length * hidden);
    call.forEach((pair, at) => {
      sameBits(found.subarray(at * hidden, (at + 1) * hidden), ofPair(pair), `${what}, call ${index}, pair ${at}`);
    });
  }
}

async function check(what: string, given: MoeCase, normed: boolean): Promise<void> {
  const tiny = expertsTiny(given, { normed });
  assert.equal(tinyPlan(tiny).operations[0]?.rows.step, row?.name);
  const rows = expertRows(ROWS, given);
  const expected = await withExperts(tiny, { device: 'reference', cache: 'f32' }, (experts) =>
    byRank(experts, given, rows),
  );
  const values = await withExperts(tiny, { features: RELAXED }, (experts) => {
    const found = byRank(experts, given, rows);
    const error = nearByKind(found, expected, {
      rows: ROWS,
      tolerance: () => toleranceOf(given),
      slack: CASE_SLACK,
      what,
    });
    if (error > 0) errors.push(error);
    checkNeighbours(experts, given, rows, found, what);
    return found;
  });
  if (!normed && toleranceOf(given) > FLOAT_TOLERANCE) checkRounded(tiny, given, rows, values, what);
  for (const options of [
    { features: PLAIN },
    { arenaBytes: SMALL_ARENAS, threads: 2 },
    { arenaBytes: 300_000, threads: 3 },
  ]) {
    await withExperts(tiny, options, (experts) => {
      const found = byRank(experts, given, rows);
      for (const [name, value] of Object.entries(values)) {
        sameBits(found[name] as Float32Array, value, `${what}, ${JSON.stringify(options)}`);
      }
      checkNeighbours(experts, given, rows, values, `${what}, ${JSON.stringify(options)}`);
    });
  }
}

/** Far closer than rounding allows: to the reference over the same rounded activations. */
function checkRounded(tiny: Tiny, given: MoeCase, rows: Float32Array, found: Values, what: string): void {
  const { hidden, moe, formats } = given;
  const weights = new Map(
    [...routed, ...(moe.scaled === true ? ['gateScale'] : [])].map((part) => [
      part as string,
      decoded(tiny.weights.get(`m.${part}`)?.format as FormatId, bytesOf(tiny, `m.${part}`)),
    ]),
  );
  const by = {
    prefix: '',
    weights: (part: string) => weights.get(part) as Float32Array,
    encoding: (part: string) => encodingOf(formats[part as Part]),
  };
  const expected = Object.fromEntries(
    pairsByRank(ROWS, given).map((pairs, rank) => {
      const made = new Float32Array(ROWS * hidden);
      for (const { row: at, expert } of pairs) {
        const x = rows.subarray(at * hidden, (at + 1) * hidden);
        made.set(roundedExpert(x, moe, { ...by, expert }), at * hidden);
      }
      return [`rank ${rank}`, made];
    }),
  );
  nearByKind(found, expected, {
    rows: ROWS,
    tolerance: () => ROUNDED_TOLERANCE,
    what: `${what}, over rounded activations`,
  });
}

describe('a pair of a row and an expert', () => {
  for (const [name, given] of Object.entries(moeCases)) {
    test(`${name}`, () => check(name, given, false));
  }
  for (const { id } of cpuFormats) {
    const given = { hidden: 256, moe: spec(3, 2, 256), formats: { gate: id, up: id, down: id } };
    test(`${id} throughout, normed first`, () => check(id, given, true));
  }

  test('over all that int8 rounds, the stated tolerance holds', () => {
    assert.ok(errors.length > 10);
    const average = Math.sqrt(errors.reduce((sum, error) => sum + error * error, 0) / errors.length);
    assert.ok(average <= (row?.tolerance.relativeRms as number), `${average}`);
  });
});

describe('the mixture of experts is made of the same bits', () => {
  for (const { id } of cpuFormats) {
    test(id, async () => {
      const router = { gating: 'softmax', selectionBias: false, normalise: false, scale: 1 } as const;
      const given: MoeCase = { hidden: 256, moe: spec(3, 1, 256, { router }), formats: { gate: id, up: id, down: id } };
      const tiny = moeGraph(given);
      // Logits so far apart that one expert has the weight 1: what it makes is the whole output.
      const bytes = bytesOf(tiny, 'm.router');
      bytes.set(new Uint8Array(decoded('F32', bytes).map((value) => value * 2 ** 20).buffer));
      const [x, matrix] = ['table x', 'm.router'].map((name) => decoded('F32', bytesOf(tiny, name))) as [
        Float32Array,
        Float32Array,
      ];
      const chosen = Array.from({ length: ROWS }, (_, at): Pair => {
        const logits = Float32Array.from({ length: 3 }, (_, expert) => {
          let sum = 0;
          for (let i = 0; i < 256; i++) sum += (x[at * 256 + i] as number) * (matrix[expert * 256 + i] as number);
          return sum;
        });
        return { row: at, expert: route(logits, undefined, router, 1).experts[0] as number };
      });
      const whole = await onCpu(tiny, {}, (running) => running.run(rowsStep('prompt', 0, ROWS), 'y'));
      const pairs = await withExperts(expertsTiny(given), {}, (experts) => computed(experts, x, 256, chosen));
      for (const { row: at } of chosen) {
        // Of rows that are all but zero the logits are, too.
        if (kindOfRow(at) === 'exact tiny') continue;
        // A sum that begins with 0 has no -0.
        const own = pairs.subarray(at * 256, (at + 1) * 256).map((value) => value + 0);
        sameBits(own, whole.subarray(at * 256, (at + 1) * 256), `${id}, row ${at}`);
      }
    });
  }
});

test('arenas of 8 MiB hold a layer in pieces, and no bit changes', async () => {
  const given: MoeCase = { hidden: 512, moe: spec(24, 4, 512), formats: { gate: 'Q4_K', up: 'Q4_K', down: 'Q6_K' } };
  const tiny = expertsTiny(given, { normed: true, layers: 3 });
  const rows = expertRows(40, given);
  const expected = await withExperts(tiny, {}, (experts) => byRank(experts, given, rows));
  await withExperts(tiny, { arenaBytes: 8 * 2 ** 20, threads: 4 }, (experts, executable) => {
    assert.ok(executable.bytes > 8 * 2 ** 20);
    const found = byRank(experts, given, rows);
    for (const [name, value] of Object.entries(expected)) sameBits(found[name] as Float32Array, value, name);
    checkNeighbours(experts, given, rows, expected, 'arenas of 8 MiB');
  });
});

test('each layer has its own norm, and no call disturbs another', async () => {
  const given: MoeCase = { hidden: 64, moe: spec(5, 2, 96), formats: { gate: 'Q8_0', down: 'Q4_0' } };
  const tiny = expertsTiny(given, { normed: true, layers: 4 });
  const rows = expertRows(9, given);
  const pairs = pairsByRank(9, given).flat();
  const ask = (experts: ExpertRunner, layer: number) => computed(experts, rows, 64, pairs, layer);
  const expected = await withExperts(tiny, { device: 'reference', cache: 'f32' }, (experts) =>
    [0, 1, 2, 3].map((layer) => ask(experts, layer)),
  );
  await withExperts(tiny, { threads: 2 }, (experts) => {
    const first = [0, 1, 2, 3].map((layer) => ask(experts, layer));
    for (const layer of [3, 0, 2, 2, 1]) {
      sameBits(ask(experts, layer), first[layer] as Float32Array, `layer ${layer} again`);
      near(first[layer] as Float32Array, expected[layer] as Float32Array, INT16_TOLERANCE, `layer ${layer}`);
    }
    assert.ok(first[0]?.some((value, i) => value !== first[1]?.[i]));
  });
});
