/** Buffers that share memory: never while both are of use, where a run stops for the host neither. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { moeWeights, spec } from '../../../test/conformance/support/moe-cases.ts';
import { f32Weight, tinyGraph } from '../../../test/conformance/support/tiny-graph.ts';
import { aCard, planFor } from '../../../test/support/device.ts';
import { mixedModelAhead } from '../../../test/support/mixed-model.ts';
import { buildGraph } from '../../model/decoder.ts';
import type { Operation } from '../../model/graph.ts';
import { type Binding, HOST_MADE, HOST_PLACES } from './builder.ts';
import { fuse } from './fuse.ts';
import { type GpuProgram, layOutGpu } from './layout.ts';
import type { GpuRow } from './row.ts';
import { gpuRows } from './rows.ts';

const HIDDEN = 64;
/** Values that live at once before the layer and after it: more buffers than the layer itself needs. */
const WIDE = 16;

/** Sums of many products of `input`, all of which are there before the first sum. */
function wide(name: string, input: string, output: string): readonly Operation[] {
  const operations: Operation[] = [];
  const each = Array.from({ length: WIDE }, (_, index) => `${name}${index}`);
  for (const made of each) operations.push({ kind: 'linear', layer: 0, input, weight: 'w', output: made });
  let sum = each[0] as string;
  for (const [index, right] of each.slice(1).entries()) {
    const next = index === WIDE - 2 ? output : `${name} sum ${index}`;
    operations.push({ kind: 'add', layer: 0, left: sum, right, output: next });
    sum = next;
  }
  return operations;
}

/** A split layer of few and small buffers between operations of many. */
function program(): GpuProgram {
  const moe = spec(4, 2, 32, { shared: { inner: 32, gated: true } });
  const weights = Object.fromEntries(
    Object.entries(moeWeights({ hidden: HIDDEN, moe, formats: {} })).map(([name, weight]) => [
      name.replace(/^m\./, 'layers.0.moe.'),
      weight,
    ]),
  );
  const operations: Operation[] = [
    ...wide('before', 'x', 'in'),
    { kind: 'moe', layer: 0, input: 'in', prefix: 'layers.0.moe', moe, output: 'out', split: true },
    ...wide('after', 'out', 'y'),
  ];
  const widths = Object.fromEntries(operations.map(({ output }) => [output, HIDDEN]));
  const tiny = tinyGraph({
    rows: 4,
    inputs: { x: new Float32Array(4 * HIDDEN) },
    operations,
    widths,
    output: 'y',
    weights: { ...weights, w: f32Weight(new Float32Array(HIDDEN * HIDDEN), HIDDEN, HIDDEN) },
  });
  const named = { embed: 'embed', linear: 'linear', add: 'add', moe: 'moe' } as const;
  const rowsOf = (mode: 'prompt' | 'step') =>
    tiny.graph.operations.map(({ kind }): GpuRow => {
      const row = gpuRows.find(
        ({ operation, modes, name }) =>
          operation === named[kind as keyof typeof named] && modes.includes(mode) && !/matrix|int8/.test(name),
      );
      assert.ok(row !== undefined, `${kind} in ${mode}`);
      return row;
    });
  return layOutGpu({
    ...tiny,
    rows: { prompt: rowsOf('prompt'), step: rowsOf('step') },
    context: 64,
    pages: 1,
    promptRows: 64,
    wantedRows: 64,
    cacheType: 'f32',
    features: new Set(),
    slabs: [{ layers: [0], slots: 1, passing: 4 }],
    hostPairs: 128,
  });
}

function namesOf(bindings: readonly Binding[]): string[] {
  return bindings.flatMap((binding) => (binding.kind === 'value' || binding.kind === 'buffer' ? [binding.name] : []));
}

describe('a split layer', () => {
  const { slotOf, dispatches, pauses } = program();
  const beside = (name: string) =>
    [...slotOf].flatMap(([other, slot]) => (other !== name && slot === slotOf.get(name) ? [other] : []));

  test('shares no memory of what the host writes only when it changes', () => {
    assert.deepEqual(beside(HOST_PLACES), []);
    // Others do share, or there would be nothing to prove.
    assert.ok(beside(HOST_MADE).length > 0);
  });

  test('keeps all that is read or written where it stops until it goes on', () => {
    for (const mode of ['prompt', 'step'] as const) {
      const [pause, ...more] = pauses[mode];
      assert.ok(pause !== undefined && more.length === 0);
      const { asks, joins, input, route } = pause;
      assert.ok(0 < asks && asks < joins && joins < dispatches[mode].length);
      const touched = new Set([
        input,
        route,
        HOST_MADE,
        HOST_PLACES,
        ...dispatches[mode].slice(asks, joins + 1).flatMap(({ bindings }) => namesOf(bindings)),
      ]);
      const places = [...touched].map((name) => slotOf.get(name));
      assert.ok(!places.includes(undefined));
      assert.equal(new Set(places).size, touched.size, mode);
    }
  });
});

describe('what predicts further ahead', () => {
  const { spec: model, weights } = mixedModelAhead;
  const graph = fuse(buildGraph(model));
  const { operations } = planFor({ spec: model, graph: buildGraph(model), weights }, { device: 'gpu', adapter: aCard });
  const rowsOf = (mode: 'prompt' | 'step') =>
    operations.map(({ rows }) => gpuRows.find(({ name }) => name === rows[mode]) as GpuRow);
  const laid = layOutGpu({
    spec: model,
    graph,
    weights,
    rows: { prompt: rowsOf('prompt'), step: rowsOf('step') },
    context: 128,
    pages: 2,
    promptRows: 64,
    wantedRows: 64,
    cacheType: 'f32',
    features: new Set(aCard.features),
  });
  const written = (mode: 'prompt' | 'step', which: 'dispatches' | 'mtp') =>
    (laid[which]?.[mode] ?? []).flatMap(({ bindings }) =>
      namesOf(bindings.filter((binding) => 'access' in binding && binding.access === 'write')),
    );

  test('is dispatches of its own, fused as a layer is', () => {
    const own = graph.operations.filter(({ mtp }) => mtp === true);
    const kinds = own.map(({ kind }) => kind);
    assert.deepEqual(kinds, [
      ...['embed', 'incoming', 'norm', 'norm', 'concat', 'linear'],
      ...['project', 'rotate', 'attention', 'project', 'moe'],
      ...['norm', 'head'],
    ]);
    for (const mode of ['prompt', 'step'] as const) {
      assert.ok(written(mode, 'mtp').includes('mtp.logits') && written(mode, 'dispatches').includes('logits'));
      assert.ok(!written(mode, 'dispatches').some((name) => name.startsWith('mtp.')));
    }
    assert.ok(laid.cache[3] !== undefined);
  });

  test('writes over nothing that is read after a run of the model', () => {
    const { mtp, logits } = graph;
    assert.ok(mtp !== undefined);
    const slots = (names: readonly string[]) => new Set(names.map((name) => laid.slotOf.get(name)));
    for (const mode of ['prompt', 'step'] as const) {
      const touched = slots([...written(mode, 'mtp'), 'mtp.incoming']);
      for (const name of [mtp.given, logits]) assert.ok(!touched.has(laid.slotOf.get(name)), `${name} in ${mode}`);
    }
    assert.notEqual(laid.slotOf.get(mtp.logits), laid.slotOf.get(mtp.hidden));
  });
});
