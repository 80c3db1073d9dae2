/**
 * The laws that every operation whose rows do not meet is held to, in both modes: near the reference, and the same bits
 * for a row whatever rows are beside it.
 */

import assert from 'node:assert/strict';
import { MAX_STEP_ROWS, type Mode } from '../../../src/backend/kernel.ts';
import { type DeviceOptions, relativeRms } from '../../support/device.ts';
import { kindOfRow, type RowKind, rowKinds } from './blocks.ts';
import { onCpu, onReference, type Running, rowsStep, type Tiny } from './tiny-graph.ts';

/** Rows of the tables that these tests use. */
export const ROWS = 200;

/** Rows of a run, for each mode: around the blocks of 4 and of 128 that products take. Each ends within `ROWS`. */
const counts: Readonly<Record<Mode, readonly number[]>> = {
  step: [1, 2, 3, 4, 5, 7, 8, 63],
  prompt: [1, 33, 128, 129],
};
const whole: Readonly<Record<Mode, number>> = { step: MAX_STEP_ROWS, prompt: ROWS };

export interface Values {
  /** What is compared, [rows, width] by its name. */
  readonly [name: string]: Float32Array;
}

/** The largest relative RMS for a kind of row. */
export type ToleranceOf = (kind: RowKind) => number;

/** Bits, not values: -0 is not 0, and a NaN is equal to itself. */
export function sameBits(found: Float32Array, expected: Float32Array, what: string): void {
  assert.equal(found.length, expected.length, what);
  const [a, b] = [found, expected].map((x) => new Uint32Array(x.buffer, x.byteOffset, x.length)) as [
    Uint32Array,
    Uint32Array,
  ];
  const at = a.findIndex((bits, i) => bits !== b[i]);
  assert.ok(at < 0, `${what}: value ${at} is ${found[at]}, expected the bits of ${expected[at]}`);
}

/**
 * Each kind of row and each value by itself, so that small ones are not lost beside large ones. Where int8 rounds, the
 * bound holds on average over what a product sums up, and a kind has few rows: there all kinds are judged together, each
 * scaled to the same size, and one alone may stray by half as much again.
 *
 * @param given.slack what the bound of those together is multiplied with
 * @returns the relative RMS of those together
 */
export function nearByKind(
  found: Values,
  expected: Values,
  given: {
    readonly rows: number;
    readonly tolerance: ToleranceOf;
    readonly what: string;
    readonly slack?: number;
  },
): number {
  const { rows, tolerance, what, slack = 1 } = given;
  const names = Object.keys(expected);
  const pick = (values: Values, of: readonly string[], kind: RowKind) =>
    concat(
      of.map((name) => {
        const value = values[name] as Float32Array;
        const width = value.length / rows;
        return value.filter((_, i) => kindOfRow(Math.floor(i / width)) === kind);
      }),
    );
  const rounded: { readonly found: Float32Array; readonly expected: Float32Array }[] = [];
  let bound = 0;
  for (const kind of rowKinds) {
    const own = tolerance(kind);
    const lossy = own >= LOSSY;
    for (const of of lossy ? [names] : names.map((name) => [name])) {
      const [ours, theirs] = [pick(found, of, kind), pick(expected, of, kind)];
      near(ours, theirs, lossy ? 1.5 * slack * own : own, `${what}, ${of.join(' and ')}, ${kind} rows`);
      const size = Math.sqrt(theirs.reduce((sum, x) => sum + x * x, 0) / theirs.length);
      if (!lossy || size === 0) continue;
      rounded.push({ found: ours.map((x) => x / size), expected: theirs.map((x) => x / size) });
      bound = Math.max(bound, own);
    }
  }
  if (rounded.length === 0) return 0;
  const [ours, theirs] = [concat(rounded.map((part) => part.found)), concat(rounded.map((part) => part.expected))];
  near(ours, theirs, slack * bound, `${what}, rows that int8 rounds`);
  return relativeRms(ours, theirs);
}

/** Tolerances from here on are those of rounded activations. */
const LOSSY = 5e-3;

function concat(parts: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function near(found: Float32Array, expected: Float32Array, tolerance: number, what: string): void {
  assert.equal(found.length, expected.length, what);
  if (expected.every((x) => x === 0)) {
    assert.ok(
      found.every((x) => x === 0),
      `${what}: expected zeros`,
    );
    return;
  }
  const error = relativeRms(found, expected);
  // A NaN is not at most anything.
  assert.ok(error <= tolerance, `${what}: relative RMS ${error}, at most ${tolerance}`);
}

/** The first rows of a value of {@link ROWS} rows. */
function firstRows(values: Float32Array, rows: number): Float32Array {
  return values.subarray(0, (values.length / ROWS) * rows);
}

async function read(
  running: Running,
  mode: Mode,
  first: number,
  count: number,
  names: readonly string[],
): Promise<Values> {
  await running.executable.run(rowsStep(mode, first, count));
  return Object.fromEntries(names.map((name) => [name, running.executable.value?.(name) as Float32Array]));
}

/**
 * Runs `names` of a graph, which all are made in its last stage, on the reference and on the CPU.
 * @returns the values of {@link ROWS} prompt rows on the CPU
 */
export async function checkRows(
  tiny: Tiny,
  given: {
    readonly names: readonly string[];
    readonly tolerance: ToleranceOf;
    readonly options?: DeviceOptions;
    readonly what: string;
    /** As for {@link nearByKind}; `onError` learns what that returns. */
    readonly slack?: number;
    readonly onError?: (relativeRms: number) => void;
  },
): Promise<Values> {
  const { names, tolerance, options = {}, what, slack, onError } = given;
  const expected = await onReference(tiny, options, (running) => read(running, 'prompt', 0, ROWS, names));
  return onCpu(tiny, options, async (running) => {
    let result: Values = {};
    for (const mode of ['step', 'prompt'] as const) {
      const rows = whole[mode];
      const all = await read(running, mode, 0, rows, names);
      const reference = Object.fromEntries(
        names.map((name) => [name, firstRows(expected[name] as Float32Array, rows)]),
      );
      const error = nearByKind(all, reference, { rows, tolerance, slack, what: `${what}, ${mode}` });
      onError?.(error);
      for (const [index, count] of counts[mode].entries()) {
        // From another row each time, up to the last that leaves room.
        const first = index === 0 ? rows - 1 : Math.floor(((rows - count) * index) / counts[mode].length);
        const some = await read(running, mode, first, count, names);
        for (const name of names) {
          const width = (all[name] as Float32Array).length / rows;
          const row = (all[name] as Float32Array).subarray(first * width, (first + count) * width);
          sameBits(some[name] as Float32Array, row, `${what}, ${name}: ${count} ${mode} rows from ${first} on`);
        }
      }
      result = all;
    }
    return result;
  });
}

/** The bits of {@link checkRows} again under other options: other builds, threads, arenas. */
export async function checkSameBits(tiny: Tiny, expected: Values, options: DeviceOptions, what: string): Promise<void> {
  await onCpu(tiny, options, async (running) => {
    const names = Object.keys(expected);
    const found = await read(running, 'prompt', 0, ROWS, names);
    for (const name of names) sameBits(found[name] as Float32Array, expected[name] as Float32Array, `${what}, ${name}`);
    const rows = await read(running, 'step', ROWS - 7, 7, names);
    const alone = await read(running, 'step', ROWS - 1, 1, names);
    for (const name of names) {
      const seven = rows[name] as Float32Array;
      sameBits(alone[name] as Float32Array, seven.subarray((seven.length / 7) * 6), `${what}, ${name}: one step row`);
    }
  });
}

export const RELAXED = new Set(['simd', 'threads', 'relaxed-simd']);
/** Right everywhere; which build a machine takes by itself is a matter of speed. */
export const DOT = new Set([...RELAXED, 'relaxed-dot']);
export const PLAIN = new Set(['simd', 'threads']);
export const SMALL_ARENAS = 65536;
