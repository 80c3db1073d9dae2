/**
 * Products on subgroup matrices. Their kernels run here with each matrix operation written out (`emulated-matrix.ts`), and
 * their texts are compiled for a device that has them; conversion and sorting are run as they are.
 */

import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { Builder } from '../../src/backend/gpu/builder.ts';
import { emitHalf, halfLayout } from '../../src/backend/gpu/kernels/half.ts';
import { matrixTolerance } from '../../src/backend/gpu/kernels/matrix.ts';
import { emitMatrix, halvesOf } from '../../src/backend/gpu/kernels/matrix-product.ts';
import type { MatrixTile } from '../../src/backend/gpu/kernels/matrix-tiles.ts';
import { bankOf, type MoeLayer, type RoutedLayer } from '../../src/backend/gpu/kernels/moe-layer.ts';
import { emitMatrixExperts } from '../../src/backend/gpu/kernels/moe-prompt-matrix.ts';
import { emitSort } from '../../src/backend/gpu/kernels/moe-sort.ts';
import { glu } from '../../src/backend/reference/operations.ts';
import type { MoeOperation } from '../../src/model/graph.ts';
import type { MoeSpec } from '../../src/model/spec.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { gaussians, nastyRows, random } from '../conformance/support/blocks.ts';
import { near, sameBits } from '../conformance/support/compare.ts';
import { spec } from '../conformance/support/moe-cases.ts';
import { emulatedMatrix } from '../support/emulated-matrix.ts';
import { closeGpuTestDevice } from '../support/gpu.ts';
import { builderOf, type DeviceWeight, deviceWeight, heldOf, runProgram } from '../support/gpu-program.ts';

after(closeGpuTestDevice);

/** The number that 16 bits are. */
function half(bits: number): number {
  const [exponent, digits] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 0 ? digits * 2 ** -24 : (1 + digits / 1024) * 2 ** (exponent - 15);
  return (bits & 0x8000) === 0 ? size : -size;
}

describe('activations as f16', () => {
  for (const { columns, norm, each } of [
    { columns: 100, norm: true, each: 1 },
    { columns: 67, norm: false, each: 3 },
    // Beyond what a workgroup keeps in registers.
    { columns: 8712, norm: false, each: 1 },
  ]) {
    test(`${columns} columns${norm ? ', normed' : ''}`, async () => {
      const rows = 24;
      const builder = builderOf(64, [], { x: columns });
      const x = nastyRows(rows * each, columns, columns);
      const weight = gaussians(columns, random(3)) as Float32Array<ArrayBuffer>;
      const epsilon = 1e-6;
      emitHalf(builder, {
        label: 'x',
        input: { kind: 'value', name: 'x', access: 'read' },
        columns,
        each,
        output: 'x f16',
        norm: norm ? { weight: 'n', epsilon } : undefined,
        normed: norm ? 'normed' : undefined,
      });
      // Some rows fewer than there is room for, so that what is beyond stays as it was.
      const found = await runProgram(builder, 'prompt', { rows: rows - 1, held: { x, n: weight }, output: 'x f16' });
      const held = { x, n: weight };
      const kept = norm ? await runProgram(builder, 'prompt', { rows: rows - 1, held, output: 'normed' }) : undefined;
      const { stride, scales } = halfLayout('x f16', columns, 64 * each);
      const halves = new Uint16Array(found.buffer);
      for (let row = 0; row < (rows - 1) * each; row++) {
        const own = Float64Array.from(x.subarray(row * columns, (row + 1) * columns));
        const mean = own.reduce((sum, value) => sum + value * value, 0) / columns;
        const expected = norm
          ? own.map((value, i) => (value / Math.sqrt(mean + epsilon)) * (weight[i] as number))
          : own;
        const scale = found[scales * 4 + row] as number;
        assert.ok(Number.isInteger(Math.log2(scale)), `row ${row}: the scale ${scale}`);
        const values = Float32Array.from({ length: stride * 8 }, (_, place) => {
          // Columns 1 and 2 of every four have changed places.
          const from = [0, 2, 1, 3][place % 4] as number;
          return half(halves[row * stride * 8 + 4 * Math.floor(place / 4) + from] as number) * scale;
        });
        near(values.subarray(0, columns), Float32Array.from(expected), 5e-4, `row ${row}`);
        const f32 = kept?.subarray(row * columns, (row + 1) * columns);
        if (f32 !== undefined) near(f32, Float32Array.from(expected), 1e-6, `row ${row} in f32`);
        assert.ok(
          values.subarray(columns).every((value) => value === 0),
          `row ${row}: padding`,
        );
      }
      assert.ok(halves.subarray((rows - 1) * each * stride * 8, rows * each * stride * 8).every((bits) => bits === 0));
    });
  }
});

/** Small, so that a device with 16 KiB of workgroup memory runs them; with the ways in which a tile can be cut. */
const low: MatrixTile = { height: 32, rows: 32, across: 2, down: 1, turn: 2, ahead: 1 };
const sideBySide: readonly {
  readonly formats: readonly [FormatId, FormatId];
  readonly columns: number;
  readonly tile: MatrixTile;
}[] = [
  // Five blocks are two turns and a half; F16 has no codes.
  { formats: ['F16', 'MXFP4'], columns: 160, tile: low },
  { formats: ['Q8_0', 'Q5_1'], columns: 160, tile: { ...low, ahead: 2 } },
  {
    formats: ['Q4_K', 'Q6_K'],
    columns: 512,
    tile: { height: 32, rows: 64, across: 2, down: 2, turn: 1, ahead: 2 },
  },
];

describe('products side by side', () => {
  for (const { formats, columns, tile } of sideBySide) {
    test(formats.join(' and '), async () => {
      const [rows, counts] = [70, [33, 50]] as const;
      const width = counts[0] + counts[1];
      const weights = formats.map((format, i) => deviceWeight(`w${i}`, format, [counts[i] as number, columns]));
      const builder = builderOf(128, weights, { x: columns, y: width, add: width });
      const x = nastyRows(rows, columns, 5);
      const bias = gaussians(counts[1], random(7)) as Float32Array<ArrayBuffer>;
      const add = gaussians(rows * width, random(8)) as Float32Array<ArrayBuffer>;
      emitMatrix(
        builder,
        {
          label: 'y',
          halves: halvesOf(builder, 'x'),
          output: { kind: 'value', name: 'y', access: 'write' },
          outputWidth: width,
          weights: weights.map(({ weight }, i) => ({ weight, bias: i === 1 ? 'bias' : undefined })),
          add: 'add',
        },
        [tile],
      );
      builder.declareValue('y', width);
      const run = (first: number, count: number) =>
        runProgram(builder, 'prompt', {
          rows: count,
          held: { ...heldOf(weights), x: x.slice(first * columns), add: add.slice(first * width), bias },
          output: 'y',
          rewrite: (code) => (code.includes('subgroup_matrix') ? emulatedMatrix(code) : code),
        });
      const found = await run(0, rows);
      for (let t = 0; t < rows; t++) {
        const expected = Float32Array.from({ length: width }, (_, r) => {
          const part = r < counts[0] ? 0 : 1;
          const row = r - (part === 0 ? 0 : counts[0]);
          const { values } = weights[part] as DeviceWeight;
          return dot(values, row * columns, x, t * columns, columns) + (part === 1 ? (bias[row] as number) : 0);
        });
        // What is added is of another size than some rows' products.
        const own = found.slice(t * width, (t + 1) * width).map((value, r) => value - (add[t * width + r] as number));
        const size = Math.hypot(...expected, ...add.subarray(t * width, (t + 1) * width));
        const error = Math.hypot(...own.map((value, r) => value - (expected[r] as number)));
        assert.ok(error <= matrixTolerance.relativeRms * size, `row ${t}: ${error} of ${size}`);
      }
      assert.ok(
        found.subarray(rows * width, 128 * width).every((value) => value === 0),
        'rows beyond the run',
      );
      for (const [first, count] of [
        [69, 1],
        [5, 33],
      ] as const) {
        const some = await run(first, count);
        sameBits(some.subarray(0, count * width), found.subarray(first * width, (first + count) * width), `${first}`);
      }
    });
  }
});

function dot(w: Float32Array, at: number, x: ArrayLike<number>, from: number, count: number): number {
  let sum = 0;
  for (let k = 0; k < count; k++) sum += (w[at + k] as number) * (x[from + k] as number);
  return sum;
}

function layerOf(builder: Builder, moe: MoeOperation['moe'], hidden: number): MoeLayer {
  const layer = routedLayerOf(builder, moe, hidden);
  return { ...layer, bank: bankOf(layer.operation, builder) };
}

function routedLayerOf(builder: Builder, moe: MoeOperation['moe'], hidden: number): RoutedLayer {
  const slot = Math.ceil(moe.inner / 32) * 32;
  const sharedSlot = Math.ceil((moe.shared?.inner ?? 0) / 32) * 32;
  const operation: MoeOperation = { kind: 'moe', layer: 0, input: 'x', prefix: 'm', moe, output: 'y' };
  const layer: RoutedLayer = {
    operation,
    builder,
    hidden,
    logits: 'logits',
    logitsWidth: moe.experts,
    route: 'route',
    routeWidth: 2 * moe.used + 1,
    inner: 'inner',
    innerWidth: moe.used * slot + sharedSlot,
    slot,
    sharedSlot,
  };
  builder.declareBuffer('route', builder.rows * layer.routeWidth * 4);
  builder.declareBuffer('inner', builder.rows * layer.innerWidth * 4);
  builder.declareValue('y', hidden);
  return layer;
}

/** Ids, weights and the shared expert's factor of each row; the first experts are in favour. */
function routesOf(rows: number, { experts, used }: MoeOperation['moe'], seed: number): Uint32Array<ArrayBuffer> {
  const next = random(seed);
  const width = 2 * used + 1;
  const words = new Uint32Array(rows * width);
  const floats = new Float32Array(words.buffer);
  for (let t = 0; t < rows; t++) {
    const ids = new Set<number>();
    while (ids.size < used) ids.add(Math.floor(experts * next() ** 2));
    [...ids].forEach((id, rank) => {
      words[t * width + rank] = id;
      floats[t * width + used + rank] = 0.1 + next();
    });
    floats[t * width + 2 * used] = 0.7;
  }
  return words;
}

test('sorted pairs: every pair once, whole tiles, experts in order', async () => {
  const moe = spec(300, 4, 32);
  const [rows, height] = [700, 16];
  const builder = builderOf(rows, [], { x: 32 });
  const route = routesOf(rows, moe, 1);
  const sorted = emitSort(routedLayerOf(builder, moe, 32), { height });
  const run = { rows: rows - 3, wanted: 0, visible: 0 };
  const floats = await runProgram(builder, 'prompt', { rows: run.rows, held: { route }, output: sorted.name });
  const words = new Uint32Array(floats.buffer);
  const counts = Array.from({ length: sorted.order / 3 }, (_, tile) => words[3 * tile + 2] as number);
  const tileCount = counts.indexOf(0);
  assert.ok(tileCount > 0 && tileCount <= sorted.tiles(run));
  assert.ok(counts.slice(tileCount).every((count) => count === 0));
  let place = 0;
  let last = -1;
  const seen = new Set<number>();
  for (let tile = 0; tile < tileCount; tile++) {
    const [expert, first, count] = words.subarray(3 * tile, 3 * tile + 3) as unknown as [number, number, number];
    assert.equal(first, place);
    assert.ok(count >= 1 && count <= height && expert >= last);
    // Only an expert's last tile is not whole.
    if (words[3 * (tile + 1)] === expert && tile + 1 < tileCount) assert.equal(count, height);
    for (let i = 0; i < count; i++) {
      const pair = words[sorted.order + first + i] as number;
      assert.equal(route[Math.floor(pair / 4) * 9 + (pair % 4)], expert);
      seen.add(pair);
    }
    place += count;
    last = expert;
  }
  assert.equal(place, run.rows * 4);
  assert.equal(seen.size, place);
});

/** Experts as they are, and with all that may be done to their products. */
const expertKinds: Readonly<Record<string, Partial<MoeSpec>>> = {
  'of widths that fit nothing': {},
  'with biases and a clamped activation': {
    biases: true,
    activation: { kind: 'clampedSwiglu', alpha: 1.702, limit: 2 },
  },
  'with weights on their inputs, biases and GELU': {
    biases: true,
    activation: 'geluTanh',
    router: { gating: 'sigmoid', selectionBias: false, normalise: false, scale: 1, weighsInput: true },
  },
};

for (const [kind, more] of Object.entries(expertKinds))
  test(`experts, with a shared one, ${kind}`, async () => {
    const [hidden, rows] = [96, 61];
    const moe = spec(5, 2, 67, { shared: { inner: 40, gated: true }, ...more });
    const weighsInput = moe.router.weighsInput === true;
    const format = 'F16';
    const shapes: Readonly<Record<string, readonly number[]>> = {
      'm.gate': [5, 67, hidden],
      'm.up': [5, 67, hidden],
      'm.down': [5, hidden, 67],
      'm.shared.gate': [40, hidden],
      'm.shared.up': [40, hidden],
      'm.shared.down': [hidden, 40],
    };
    const weights = Object.entries(shapes).map(([name, shape]) => deviceWeight(name, format, shape));
    const biases: Readonly<Record<string, Float32Array<ArrayBuffer>>> =
      moe.biases === undefined
        ? {}
        : {
            'm.gate.bias': gaussians(5 * 67, random(11)) as Float32Array<ArrayBuffer>,
            'm.up.bias': gaussians(5 * 67, random(12)) as Float32Array<ArrayBuffer>,
            'm.down.bias': gaussians(5 * hidden, random(13)) as Float32Array<ArrayBuffer>,
          };
    const values = (name: string) => weights.find(({ weight }) => weight.name === name)?.values as Float32Array;
    const builder = builderOf(64, weights, { x: hidden, y: hidden });
    emitMatrixExperts(layerOf(builder, moe, hidden), {
      experts: [{ in: low, out: low }],
      dense: [low],
      sortThreads: 128,
    });
    const x = gaussians(rows * hidden, random(2)) as Float32Array<ArrayBuffer>;
    const route = routesOf(rows, moe, 4);
    const run = (first: number, count: number) =>
      runProgram(builder, 'prompt', {
        rows: count,
        held: { ...heldOf(weights), ...biases, x: x.slice(first * hidden), route: route.slice(first * 5) },
        output: 'y',
        rewrite: (code) => (code.includes('subgroup_matrix') ? emulatedMatrix(code) : code),
      });
    const found = await run(0, rows);
    const factors = new Float32Array(route.buffer);
    const expert = (t: number, part: string, id: number, inner: number, weight = 1): number[] => {
      const biasOf = (name: string, at: number) => biases[`m.${part}${name}.bias`]?.[at] ?? 0;
      const product = (name: string) =>
        Float32Array.from({ length: inner }, (_, i) => {
          const at = id * inner + i;
          return weight * dot(values(`m.${part}${name}`), at * hidden, x, t * hidden, hidden) + biasOf(name, at);
        });
      const gated = glu(product('gate'), product('up'), moe.activation);
      return Array.from({ length: hidden }, (_, j) => {
        const at = id * hidden + j;
        return dot(values(`m.${part}down`), at * inner, gated, 0, inner) + biasOf('down', at);
      });
    };
    for (let t = 0; t < rows; t++) {
      const sum = new Float32Array(hidden);
      for (const rank of [0, 1]) {
        const factor = factors[t * 5 + 2 + rank] as number;
        const id = route[t * 5 + rank] as number;
        const made = weighsInput ? expert(t, '', id, 67, factor) : expert(t, '', id, 67).map((value) => factor * value);
        made.forEach((value, j) => {
          sum[j] = (sum[j] as number) + value;
        });
      }
      expert(t, 'shared.', 0, 40).forEach((value, j) => {
        sum[j] = (sum[j] as number) + (factors[t * 5 + 4] as number) * value;
      });
      near(found.slice(t * hidden, (t + 1) * hidden), sum, matrixTolerance.relativeRms, `row ${t}`);
    }
    const some = await run(20, 7);
    sameBits(some.subarray(0, 7 * hidden), found.subarray(20 * hidden, 27 * hidden), 'rows 20 … 26');
  });
