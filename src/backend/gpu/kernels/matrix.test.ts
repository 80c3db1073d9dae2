/** Which prompt products are planned on subgroup matrices, and why others are not. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Operation } from '../../../model/graph.ts';
import type { MoeSpec } from '../../../model/spec.ts';
import { select } from '../../../plan/select.ts';
import { type FormatId, formatOf } from '../../../quant/index.ts';
import { answerOf, type KernelRequest, type KernelRow, type Mode, type WeightShape } from '../../kernel.ts';
import { gpuFormats } from '../formats/index.ts';
import { gpuRows } from '../rows.ts';
import { MATRIX_FEATURE } from './matrix.ts';
import { denseTiles, sideBySideTiles } from './matrix-product.ts';
import { type MatrixTile, tileBytes, tileThreads } from './matrix-tiles.ts';
import { expertTiles } from './moe-prompt-matrix.ts';

const moe: MoeSpec = {
  experts: 4,
  used: 2,
  inner: 256,
  activation: 'silu',
  shared: { inner: 256, gated: true },
  router: { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 },
};

const base = { layer: 0, input: 'x', output: 'y' } as const;

/** An operation of each kind that has such a row, over matrices of one format, and the names of those. */
const operations: readonly { readonly operation: Operation; readonly matrices: readonly string[] }[] = [
  { operation: { ...base, kind: 'linear', weight: 'a' }, matrices: ['a'] },
  { operation: { ...base, kind: 'project', parts: [{ weight: 'a' }, { weight: 'b' }] }, matrices: ['a', 'b'] },
  { operation: { ...base, kind: 'gated', gate: 'a', up: 'b', activation: 'silu' }, matrices: ['a', 'b'] },
  {
    operation: { ...base, kind: 'moe', prefix: 'm', moe },
    matrices: ['gate', 'up', 'down', 'shared.gate', 'shared.up', 'shared.down'].map((part) => `m.${part}`),
  },
];

function request(
  { operation, matrices }: (typeof operations)[number],
  given: {
    readonly format?: FormatId;
    readonly mode?: Mode;
    readonly features?: readonly string[];
    readonly change?: Readonly<Record<string, WeightShape>>;
  } = {},
): KernelRequest {
  const { format = 'Q4_K', mode = 'prompt', features = [MATRIX_FEATURE], change = {} } = given;
  const shape = (name: string) => (/^m\.(gate|up|down)$/.test(name) ? [4, 256, 256] : [256, 256]);
  const router: WeightShape = { format: 'F32', shape: [4, 256] };
  return {
    operation,
    mode,
    rows: 512,
    weights: {
      ...Object.fromEntries(matrices.map((name) => [name, { format, shape: shape(name) }])),
      ...(operation.kind === 'moe' ? { 'm.router': router, 'm.shared.router': { ...router, shape: [1, 256] } } : {}),
      ...change,
    },
    widths: { x: 256, y: 256 },
    cache: 'f16',
    features: new Set(features),
  };
}

for (const given of operations) {
  const { kind } = given.operation;
  describe(`${kind} of prompt rows`, () => {
    const row = gpuRows.find(({ name }) => name === `${kind}-prompt-matrix`);
    assert.ok(row !== undefined);

    test('is on subgroup matrices where the device has them, and else in f32', () => {
      for (const { id } of gpuFormats) {
        const fine = !/^(F32|BF16|FP8)/.test(id);
        const chosen = select(gpuRows, request(given, { format: id })).name;
        assert.equal(chosen === row.name, fine, `${id}: ${chosen}`);
      }
      assert.notEqual(select(gpuRows, request(given, { features: ['shader-f16', 'subgroups'] })).name, row.name);
      assert.match(String(row.accepts(request(given, { features: [] }))), /needs subgroup-matrix-f16/);
    });

    test('is for prompts alone', () => {
      assert.deepEqual(row.modes, ['prompt']);
      assert.notEqual(select(gpuRows, request(given, { mode: 'step' })).name, row.name);
    });

    for (const name of given.matrices) {
      test(`refuses ${name} by name`, () => {
        const refusal = (weight: WeightShape) => String(row.accepts(request(given, { change: { [name]: weight } })));
        const stack = kind === 'moe' && !name.includes('shared') ? [4] : [];
        const shape = [...stack, 256, 256];
        for (const format of ['F32', 'BF16', 'FP8_128']) {
          const reason = new RegExp(`${name}: weights are rounded to f16, which is too coarse for ${format}`);
          assert.match(refusal({ format, shape }), reason);
        }
        assert.match(refusal({ format: 'Q9_Z', shape }), new RegExp(`${name}.*found Q9_Z`));
        const ragged = [...stack, 256, formatOf('Q6_K').blockLength / 2];
        assert.match(refusal({ format: 'Q6_K', shape: ragged }), new RegExp(`${name}.*found 128`));
        assert.match(refusal({ format: 'Q6_K', shape: [256] }), new RegExp(`${name}: needs a matrix, found \\[256\\]`));
      });
    }
  });
}

test('a gated product serves every activation, and a plain one has none to serve', () => {
  const gelu: Operation = { ...base, kind: 'gated', gate: 'a', up: 'b', activation: 'geluTanh' };
  const row = gpuRows.find(({ name }) => name === 'gated-prompt-matrix') as KernelRow;
  assert.equal(answerOf(row, request({ operation: gelu, matrices: ['a', 'b'] })), true);
  assert.deepEqual(gpuRows.find(({ name }) => name === 'project-prompt-matrix')?.serves, []);
});

test('tiles are whole fragments in every subgroup, and fit the workgroup memory that the feature stands for', () => {
  const all: readonly MatrixTile[] = [
    ...denseTiles,
    ...sideBySideTiles,
    ...expertTiles.flatMap((tiles) => [tiles.in, tiles.out]),
  ];
  for (const tile of all) {
    const { height, rows, across, down, turn } = tile;
    const what = JSON.stringify(tile);
    assert.equal(height % (16 * down), 0, what);
    // Half of a gated tile's rows are of one matrix, and a thread's load is of one matrix.
    assert.equal((rows / 2) % (16 * across) === 0 || (rows / 2) % (rows / across) === 0, true, what);
    assert.ok(tileBytes(tile) <= 48 * 1024, what);
    assert.ok(tileThreads(tile) <= 512, what);
    assert.ok([1, 2].includes(turn), what);
  }
  for (const tiles of expertTiles) assert.equal(tiles.in.height, tiles.out.height);
});
