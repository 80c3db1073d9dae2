/** Each operation against its definition on numbers that can be checked by hand. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ropeTable } from '../../model/rope.ts';
import { PAGE_ROWS } from '../backend.ts';
import { add, attention, concat, embed, gather, glu, type LayerCache, linear, norm, rope } from './operations.ts';

const f32 = (...values: number[]) => Float32Array.from(values);

test('embed and gather take the rows that are named, in their order', () => {
  assert.deepEqual(embed(f32(1, 2, 3, 4, 5, 6), Int32Array.of(2, 0, 2), 2), f32(5, 6, 1, 2, 5, 6));
  assert.deepEqual(gather(f32(1, 2, 3, 4, 5, 6), Int32Array.of(1, 2), 2), f32(3, 4, 5, 6));
  assert.equal(gather(f32(1, 2), new Int32Array(0), 2).length, 0);
});

test('concat puts the rows of two values side by side', () => {
  assert.deepEqual(concat(f32(1, 2, 3, 4), f32(5, 6), [2, 1]), f32(1, 2, 5, 3, 4, 6));
  assert.equal(concat(f32(), f32(), [2, 1]).length, 0);
});

test('norm divides each group by its own root mean square', () => {
  // Roots of (9 + 16) / 2 and (36 + 64) / 2.
  const expected = [3 / Math.sqrt(12.5), (4 / Math.sqrt(12.5)) * 2, 6 / Math.sqrt(50), (8 / Math.sqrt(50)) * 2];
  assert.deepEqual(norm(f32(3, 4, 6, 8), f32(1, 2), 2, 0), Float32Array.from(expected));
  assert.deepEqual(norm(f32(0, 0), f32(1, 1), 2, 1e-6), f32(0, 0));
  assert.equal(norm(f32(1, 1), f32(1, 1), 2, 3)[0], 0.5);
});

test('linear multiplies by the rows of the matrix, from its offset on, and adds the bias', () => {
  const data = f32(9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
  const matrix = { data, offset: 2, rows: 2, columns: 5 };
  const input = f32(1, 1, 1, 1, 1, 0, 1, 0, 0, -1);
  assert.deepEqual(linear(input, matrix), f32(15, 40, 2 - 5, 7 - 10));
  assert.deepEqual(linear(input, matrix, f32(100, 0.5)), f32(115, 40.5, 97, -2.5));
});

test('linear keeps f64 sums: what f32 would lose comes back', () => {
  const big = 2 ** 24;
  assert.deepEqual(linear(f32(big, 1, -big), { data: f32(1, 1, 1), offset: 0, rows: 1, columns: 3 }), f32(1));
});

test('rope turns the pairs that the pairing names and leaves the rest of the head', () => {
  const table = ropeTable({ pairing: 'half', dimensions: 4, base: 100, scaling: { kind: 'none' } });
  const head = [1, 2, 3, 4, 5, 6];
  const turn = (a: number, b: number, angle: number) => [
    a * Math.cos(angle) - b * Math.sin(angle),
    a * Math.sin(angle) + b * Math.cos(angle),
  ];
  const near = (found: Float32Array, expected: readonly number[]) => {
    for (const [i, value] of expected.entries()) {
      assert.ok(Math.abs(found[i] - value) < 1e-6, `${i}: found ${found[i]}, expected ${value}`);
    }
  };
  const [a, c] = turn(1, 3, 2);
  const [b, d] = turn(2, 4, 0.2);
  const half = rope(f32(...head, ...head), Int32Array.of(2), { table, headDim: 6, pairing: 'half' });
  near(half, [a, b, c, d, 5, 6, a, b, c, d, 5, 6]);
  const adjacent = rope(f32(...head), Int32Array.of(2), { table, headDim: 6, pairing: 'adjacent' });
  near(adjacent, [...turn(1, 2, 2), ...turn(3, 4, 0.2), 5, 6]);
});

function emptyCache(pages: number, width: number): LayerCache {
  return { keys: new Float32Array(pages * PAGE_ROWS * width), values: new Float32Array(pages * PAGE_ROWS * width) };
}

const oneHead = { heads: 1, kvHeads: 1, headDim: 1, valueDim: 1, scale: 1 };

test('attention weighs values by the softmax of the scores, never of what comes later', () => {
  const rows = { positions: Int32Array.of(0, 1), sequences: Int32Array.of(0, 0), pageTables: [Int32Array.of(0)] };
  const output = attention(
    { query: f32(1, 1), key: f32(0, Math.log(3)), value: f32(10, 20) },
    emptyCache(1, 1),
    rows,
    oneHead,
  );
  assert.equal(output[0], 10);
  assert.ok(Math.abs(output[1] - (10 + 3 * 20) / 4) < 1e-5);
});

test('attention: query heads share key heads in order, and sequences keep to their pages', () => {
  const cache = emptyCache(2, 2);
  const shape = { heads: 4, kvHeads: 2, headDim: 1, valueDim: 1, scale: 1 };
  const rows = {
    positions: Int32Array.of(0, 0),
    sequences: Int32Array.of(0, 1),
    pageTables: [Int32Array.of(1), Int32Array.of(0)],
  };
  const inputs = { query: new Float32Array(8), key: new Float32Array(4), value: f32(1, 2, 3, 4) };
  assert.deepEqual(attention(inputs, cache, rows, shape), f32(1, 1, 2, 2, 3, 3, 4, 4));
  assert.deepEqual(cache.values.subarray(0, 2), f32(3, 4));
  assert.deepEqual(cache.values.subarray(PAGE_ROWS * 2, PAGE_ROWS * 2 + 2), f32(1, 2));
});

test('attention survives scores that would overflow an exponential', () => {
  const rows = { positions: Int32Array.of(0, 1), sequences: Int32Array.of(0, 0), pageTables: [Int32Array.of(0)] };
  const output = attention(
    { query: f32(1, 1), key: f32(5000, 4000), value: f32(7, 8) },
    emptyCache(1, 1),
    rows,
    oneHead,
  );
  assert.deepEqual(output, f32(7, 7));
});

test('glu is x·σ(x) times up; add adds', () => {
  assert.deepEqual(
    glu(f32(0, 2, -1), f32(5, 3, 2), 'silu'),
    f32(0, (2 / (1 + Math.exp(-2))) * 3, (-1 / (1 + Math.E)) * 2),
  );
  assert.deepEqual(add(f32(1, 2), f32(3, -2)), f32(4, 0));
});
