/** Each operation against its definition on numbers that can be checked by hand. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ropeTable } from '../../model/rope.ts';
import { PAGE_ROWS } from '../backend.ts';
import {
  type AttentionShape,
  add,
  attention,
  concat,
  embed,
  gate,
  gather,
  glu,
  type LayerCache,
  linear,
  norm,
  rope,
  scale,
  softcap,
} from './operations.ts';

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

/** Eight positions of one sequence whose keys are all alike, with values 1, 2, 4 … 128: which were seen shows in their mean. */
function meansSeen(beyond: Partial<AttentionShape>, sinks?: Float32Array): Float32Array {
  const positions = Int32Array.from({ length: 8 }, (_, position) => position);
  const rows = { positions, sequences: new Int32Array(8), pageTables: [Int32Array.of(0)] };
  const inputs = {
    query: new Float32Array(8).fill(1),
    key: new Float32Array(8),
    value: Float32Array.from(positions, (position) => 2 ** position),
  };
  return attention(inputs, emptyCache(1, 1), rows, { ...oneHead, ...beyond }, sinks);
}

test('a window shows the last positions, a chunk those since its beginning', () => {
  const mean = (from: number, to: number) => (2 ** (to + 1) - 2 ** from) / (to + 1 - from);
  const windows = meansSeen({ reach: { kind: 'window', length: 3 } });
  assert.deepEqual(
    windows,
    windows.map((_, at) => mean(Math.max(0, at - 2), at)),
  );
  const chunks = meansSeen({ reach: { kind: 'chunk', length: 3 } });
  assert.deepEqual(
    chunks,
    chunks.map((_, at) => mean(at - (at % 3), at)),
  );
});

test('a sink takes its share of the softmax and brings nothing', () => {
  const found = meansSeen({ reach: { kind: 'window', length: 1 } }, f32(Math.log(3)));
  for (const [at, value] of found.entries())
    assert.ok(Math.abs(value - 2 ** at / 4) <= 1e-6 * value, `${at}: ${value}`);
  assert.deepEqual(meansSeen({ reach: { kind: 'window', length: 1 } }, f32(5000)), new Float32Array(8));
});

test('temperature sharpens scores where positions are far, and not before', () => {
  // Position 3 is the first of which ⌊(p + 1) / 4⌋ is not 0.
  const rows = (last: number) => ({
    positions: Int32Array.from({ length: last + 1 }, (_, position) => position),
    sequences: new Int32Array(last + 1),
    pageTables: [Int32Array.of(0)],
  });
  const inputs = { query: f32(1, 1, 1, 1), key: f32(1, 0, 0, 0), value: f32(1, 0, 0, 0) };
  const shape = { ...oneHead, temperature: { length: 4, scale: 0.5 } };
  const found = attention(inputs, emptyCache(1, 1), rows(3), shape);
  const share = (score: number, others: number) => Math.exp(score) / (Math.exp(score) + others);
  assert.ok(Math.abs(found[2] - share(1, 2)) < 1e-6);
  assert.ok(Math.abs(found[3] - share(1 + 0.5 * Math.log(2), 3)) < 1e-6);
});

test('norm without weights is the norm with weights of 1; embeddings and values are scaled', () => {
  assert.deepEqual(norm(f32(3, 4, 6, 8), undefined, 2, 0), norm(f32(3, 4, 6, 8), f32(1, 1), 2, 0));
  assert.deepEqual(embed(f32(1, 2, 3, 4), Int32Array.of(1), 2, 8), f32(24, 32));
  assert.deepEqual(scale(f32(1, -2), 0.5), f32(0.5, -1));
});

test('a gate is one number for as many elements as it has', () => {
  assert.deepEqual(gate(f32(1, 2, 3, 4), f32(0, 100), 'sigmoid'), f32(0.5, 1, 3, 4));
  assert.deepEqual(gate(f32(1, 2), f32(0, -100), 'softplus'), f32(Math.LN2, 2 * Math.log1p(Math.exp(-100))));
});

test('a soft cap leaves what is small and holds what is large', () => {
  assert.deepEqual(softcap(f32(0, 1e-3, 1e9, -1e9), 30), f32(0, 30 * Math.tanh(1e-3 / 30), 30, -30));
});

test('GELU and clamped SwiGLU are what their definitions say', () => {
  const gelu = (x: number) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
  assert.deepEqual(glu(f32(0, 2, -1), f32(5, 3, 2), 'geluTanh'), f32(0, gelu(2) * 3, gelu(-1) * 2));
  const clamped = { kind: 'clampedSwiglu', alpha: 2, limit: 3 } as const;
  const act = (g: number, u: number) => (g / (1 + Math.exp(-2 * g))) * (u + 1);
  assert.deepEqual(
    glu(f32(1, 9, -9, 1), f32(2, -9, 9, 3.5), clamped),
    f32(act(1, 2), act(3, -3), act(-9, 3), act(1, 3)),
  );
});

test('glu is x·σ(x) times up; add adds', () => {
  assert.deepEqual(
    glu(f32(0, 2, -1), f32(5, 3, 2), 'silu'),
    f32(0, (2 / (1 + Math.exp(-2))) * 3, (-1 / (1 + Math.E)) * 2),
  );
  assert.deepEqual(add(f32(1, 2), f32(3, -2)), f32(4, 0));
});
