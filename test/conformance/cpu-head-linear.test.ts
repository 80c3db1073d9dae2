/**
 * Laws 3 and 4 for products of heads: every format of the CPU's table against the reference, heads with and without a rest
 * that is not multiplied, at widths that leave heads unaligned; and a rest goes on bit by bit.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { CpuRow } from '../../src/backend/cpu/row.ts';
import { cpuRows } from '../../src/backend/cpu/rows.ts';
import type { HeadLinearOperation } from '../../src/model/graph.ts';
import { type FormatId, formatOf } from '../../src/quant/index.ts';
import { decoded, nastyRows, type RowKind, randomWeight } from './support/blocks.ts';
import {
  checkRows,
  checkSameBits,
  PLAIN,
  RELAXED,
  ROWS,
  SMALL_ARENAS,
  sameBits,
  type ToleranceOf,
} from './support/compare.ts';
import { formatOfRow } from './support/requests.ts';
import { bytesOf, type Tiny, tinyGraph, tinyPlan } from './support/tiny-graph.ts';

interface Shape {
  readonly heads: number;
  readonly rows: number;
  readonly rest: number;
}

/** A group of 4 rows, a unit of 64 and more; a rest of none, of a vector, of none that is aligned, and of a block. */
const shapes: readonly Shape[] = [
  { heads: 1, rows: 4, rest: 0 },
  { heads: 3, rows: 12, rest: 4 },
  { heads: 2, rows: 132, rest: 7 },
  { heads: 3, rows: 24, rest: 32 },
];

/**
 * Activations that int8 holds without loss leave f32 sums only; there are few of them, and some cancel. They are such where
 * heads begin as blocks of 32 do.
 */
function toleranceOf(row: CpuRow, { rest }: Shape): ToleranceOf {
  const stated = row.tolerance.relativeRms;
  return (kind: RowKind) => (kind.startsWith('exact') && rest % 32 === 0 ? Math.min(stated, 1e-5) : stated);
}

function columnsOf(format: FormatId): readonly number[] {
  const { blockLength } = formatOf(format);
  if (blockLength === 1) return [3, 64];
  return [blockLength < 256 ? 3 * blockLength : 256];
}

function product(format: FormatId, columns: number, { heads, rows, rest }: Shape): Tiny {
  const operation: HeadLinearOperation = {
    kind: 'headLinear',
    layer: 0,
    input: 'x',
    weight: 'w',
    heads,
    ...(rest === 0 ? {} : { rest }),
    output: 'y',
  };
  const bytes = randomWeight(format, heads * rows * columns, rows);
  return tinyGraph({
    rows: ROWS,
    inputs: { x: nastyRows(ROWS, heads * (columns + rest), rows) },
    operations: [operation],
    widths: { y: heads * (rows + rest) },
    output: 'y',
    weights: { w: { format, shape: [heads, rows, columns], bytes } },
  });
}

/** What is not multiplied of each head. */
function restsOf(values: Float32Array, heads: number, rest: number): Float32Array {
  const head = values.length / ROWS / heads;
  return values.filter((_, i) => i % head >= head - rest);
}

describe('headLinear', () => {
  for (const row of cpuRows.filter(({ operation }) => operation === 'headLinear')) {
    const format = formatOfRow(row);
    for (const columns of columnsOf(format)) {
      test(`${row.name}: ${columns} columns`, async () => {
        for (const shape of shapes) {
          const { heads, rest } = shape;
          const tiny = product(format, columns, shape);
          assert.deepEqual(tinyPlan(tiny).operations.at(-1)?.rows, { prompt: row.name, step: row.name });
          const what = `${format} × ${columns}, ${heads} heads`;
          const options = { features: RELAXED };
          const values = await checkRows(tiny, { names: ['y'], tolerance: toleranceOf(row, shape), options, what });
          const expected = restsOf(decoded('F32', bytesOf(tiny, 'table x')), heads, rest);
          sameBits(restsOf(values.y as Float32Array, heads, rest), expected, `${what}: the rest`);
          await checkSameBits(tiny, values, { features: PLAIN, threads: 3 }, `${what}, plain SIMD`);
          await checkSameBits(tiny, values, { ...options, arenaBytes: SMALL_ARENAS }, `${what}, arenas of 64 KiB`);
        }
      });
    }
  }
});
