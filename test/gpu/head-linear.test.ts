/**
 * Laws 3 and 4 for products of heads on the GPU: against the reference over heads with and without a rest that is not
 * multiplied, at widths that are no multiple of what a workgroup takes, and the bits of a row beside any neighbours. That
 * each format is decoded rightly is the law of `formats.test.ts`.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { headLinearRows } from '../../src/backend/gpu/kernels/head-linear.ts';
import type { HeadLinearOperation } from '../../src/model/graph.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { nastyRows, randomWeight } from '../conformance/support/blocks.ts';
import { ROWS } from '../conformance/support/compare.ts';
import { requestFor } from '../conformance/support/requests.ts';
import { type Tiny, tinyGraph, tinyPlan } from '../conformance/support/tiny-graph.ts';
import { checkGpuRows } from './on-gpu.ts';

interface Shape {
  readonly format: FormatId;
  readonly heads: number;
  readonly rows: number;
  readonly columns: number;
  readonly rest: number;
}

const operationOf = ({ heads, rest }: Pick<Shape, 'heads' | 'rest'>): HeadLinearOperation => ({
  kind: 'headLinear',
  layer: 0,
  input: 'x',
  weight: 'w',
  heads,
  ...(rest === 0 ? {} : { rest }),
  output: 'y',
});

function product({ format, heads, rows, columns, rest }: Shape): Tiny {
  const bytes = randomWeight(format, heads * rows * columns, rows);
  return tinyGraph({
    rows: ROWS,
    inputs: { x: nastyRows(ROWS, heads * (columns + rest), rows) },
    operations: [operationOf({ heads, rest })],
    widths: { y: heads * (rows + rest) },
    output: 'y',
    weights: { w: { format, shape: [heads, rows, columns], bytes } },
  });
}

const [row] = headLinearRows;
assert.ok(row !== undefined && headLinearRows.length === 1);

describe('headLinear on the GPU', () => {
  const shapes: readonly Shape[] = [
    { format: 'F32', heads: 3, rows: 5, columns: 35, rest: 7 },
    { format: 'BF16', heads: 4, rows: 32, columns: 32, rest: 16 },
    { format: 'Q8_0', heads: 2, rows: 130, columns: 96, rest: 0 },
    { format: 'Q4_K', heads: 2, rows: 20, columns: 512, rest: 64 },
  ];
  for (const shape of shapes) {
    const { format, heads, rows, columns, rest } = shape;
    test(`${format}: ${heads} heads of [${rows}, ${columns}] and ${rest} more`, async () => {
      const tiny = product(shape);
      assert.deepEqual(tinyPlan(tiny, { device: 'gpu' }).operations.at(-1)?.rows, {
        prompt: row.name,
        step: row.name,
      });
      await checkGpuRows(tiny, { tolerance: () => row.tolerance.relativeRms, what: JSON.stringify(shape) });
    });
  }

  test('takes what its bounds say, and names what it does not take', () => {
    const ask = (shape: readonly number[], rows = 64, format: FormatId = 'BF16') => {
      const operation = operationOf({ heads: shape[0] as number, rest: 0 });
      return row.accepts(requestFor(operation, { rows, weights: { w: { format, shape } } }));
    };
    // As large as they are: DeepSeek-V3.
    assert.equal(ask([128, 512, 128]), true);
    assert.equal(ask([128, 128, 512], 65535), true);
    assert.match(String(ask([128, 128, 512], 65536)), /takes up to 65535 rows a run, found 65536/);
    assert.match(String(ask([4, 4, 513])), /up to 512 columns, found 513/);
    assert.equal(ask([65535, 16, 512]), true);
    assert.match(String(ask([65535, 17, 512])), /up to 65535 workgroups, found 131070/);
    assert.match(String(ask([4, 32])), /needs a matrix a head, found \[4, 32\]/);
    assert.match(String(ask([2, 4, 32], 64, 'Q9_Z')), /found Q9_Z/);
    assert.match(String(ask([2, 4, 33], 64, 'Q8_0')), /multiples of 32 for Q8_0, found 33/);
  });
});
