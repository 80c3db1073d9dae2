/** What a rewrite takes together, what it leaves, and that nobody is left without a value. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { mixedModel } from '../../../test/support/mixed-model.ts';
import { buildGraph } from '../../model/decoder.ts';
import { expertsGraph } from '../../model/experts-graph.ts';
import type { AttentionOperation, Graph, Operation } from '../../model/graph.ts';
import { fuse } from './fuse.ts';

const norm = (input: string, output: string, group: number): Operation => ({
  kind: 'norm',
  layer: 0,
  input,
  weight: `${output}.weight`,
  epsilon: 1e-6,
  group,
  output,
});
const linear = (input: string, output: string): Operation => ({
  kind: 'linear',
  layer: 0,
  input,
  weight: `${output}.weight`,
  output,
});
const rope = (input: string, output: string): Operation => ({
  kind: 'rope',
  layer: 0,
  input,
  headDim: 8,
  rope: { pairing: 'half', dimensions: 8, base: 1e4, scaling: { kind: 'none' } },
  output,
});

/** One layer as the decoder writes it: two heads of 8, one key head. */
const attention: readonly Operation[] = [
  norm('x', 'a', 32),
  linear('a', 'q'),
  linear('a', 'k'),
  linear('a', 'v'),
  norm('q', 'qn', 8),
  norm('k', 'kn', 8),
  rope('qn', 'qr'),
  rope('kn', 'kr'),
  {
    kind: 'attention',
    layer: 0,
    query: 'qr',
    key: 'kr',
    value: 'v',
    heads: 2,
    kvHeads: 1,
    headDim: 8,
    valueDim: 8,
    scale: 1,
    output: 'mixed',
  },
  linear('mixed', 'o'),
  { kind: 'add', layer: 0, left: 'x', right: 'o', output: 'h' },
];
const dense: readonly Operation[] = [
  norm('h', 'f', 32),
  linear('f', 'g'),
  linear('f', 'u'),
  { kind: 'glu', layer: 0, gate: 'g', up: 'u', activation: 'silu', output: 'i' },
  linear('i', 'd'),
  { kind: 'add', layer: 0, left: 'h', right: 'd', output: 'y' },
];
const widths: Graph['widths'] = {
  ...Object.fromEntries(['x', 'a', 'o', 'h', 'f', 'd', 'y', 'extra'].map((name) => [name, 32])),
  ...Object.fromEntries(['q', 'qn', 'qr', 'mixed'].map((name) => [name, 16])),
  ...Object.fromEntries(['k', 'kn', 'kr', 'v'].map((name) => [name, 8])),
  ...Object.fromEntries(['g', 'u', 'i'].map((name) => [name, 64])),
};

function graphOf(operations: readonly Operation[], logits = 'y'): Graph {
  const embed: Operation = { kind: 'embed', layer: -1, weight: 'table', output: 'x' };
  return { operations: [embed, ...operations], widths, logits, hidden: [] };
}

const kinds = (graph: Graph) => graph.operations.map(({ kind }) => kind);

/** Every value that is read is made before, as it was. */
function assertWhole(graph: Graph): void {
  const made = new Set<string>();
  for (const operation of graph.operations) {
    for (const name of ['input', 'query', 'left', 'right', 'gate', 'up', 'add', 'key', 'value'] as const) {
      const read = (operation as unknown as Record<string, unknown>)[name];
      const stored = operation.kind === 'attention' && operation.rotated && (name === 'key' || name === 'value');
      const weight = operation.kind === 'gated' && name !== 'input';
      if (typeof read === 'string' && !stored && !weight)
        assert.ok(made.has(read), `${operation.output} reads ${read}`);
    }
    made.add(operation.output);
    assert.ok(graph.widths[operation.output] !== undefined, operation.output);
  }
  assert.ok(made.has(graph.logits));
}

describe('fuse', () => {
  test('a dense layer is five operations', () => {
    const fused = fuse(graphOf([...attention, ...dense]));
    assertWhole(fused);
    assert.deepEqual(kinds(fused), ['embed', 'project', 'rotate', 'attention', 'project', 'gated', 'project']);
    const [, project, rotate, attend, output, gated, down] = fused.operations;
    assert.deepEqual(project, {
      kind: 'project',
      layer: 0,
      input: 'x',
      norm: { weight: 'a.weight', epsilon: 1e-6 },
      parts: ['q', 'k', 'v'].map((name) => ({ weight: `${name}.weight`, bias: undefined })),
      output: 'layers.0.attention.projected',
    });
    assert.equal(fused.widths['layers.0.attention.projected'], 32);
    assert.ok(rotate?.kind === 'rotate' && rotate.queryNorm?.group === 8 && rotate.rope !== undefined);
    assert.ok(attend?.kind === 'attention' && attend.rotated === rotate && attend.query === rotate.output);
    assert.ok(output?.kind === 'project' && output.add === 'x' && output.output === 'h');
    assert.ok(gated?.kind === 'gated' && gated.norm?.weight === 'f.weight' && gated.input === 'h');
    assert.ok(down?.kind === 'project' && down.add === 'h' && down.output === 'y');
  });

  test('the norm and the sum of experts become part of them', () => {
    const moe: Operation = {
      kind: 'moe',
      layer: 0,
      input: 'f',
      prefix: 'm',
      moe: {
        experts: 4,
        used: 2,
        inner: 8,
        activation: 'silu',
        router: { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 },
      },
      output: 'd',
    };
    const fused = fuse(
      graphOf([norm('x', 'f', 32), moe, { kind: 'add', layer: 0, left: 'x', right: 'd', output: 'y' }]),
    );
    assertWhole(fused);
    const { norm: taken, add, input, output } = fused.operations[1] as Extract<Operation, { kind: 'moe' }>;
    assert.deepEqual(kinds(fused), ['embed', 'moe']);
    assert.deepEqual(
      { taken, add, input, output },
      { taken: { weight: 'f.weight', epsilon: 1e-6 }, add: 'x', input: 'x', output: 'y' },
    );
  });

  test('what somebody else reads stays', () => {
    // The norm's rows, and the rotated queries, are read once more.
    const more: Operation = { kind: 'add', layer: 0, left: 'a', right: 'o', output: 'extra' };
    const normRead = fuse(
      graphOf([...attention.slice(0, -1), more, { kind: 'add', layer: 0, left: 'x', right: 'extra', output: 'y' }]),
    );
    assertWhole(normRead);
    assert.deepEqual(kinds(normRead).slice(0, 5), ['embed', 'norm', 'project', 'rotate', 'attention']);
    const queryRead = fuse(graphOf([...attention, { kind: 'add', layer: 0, left: 'qr', right: 'mixed', output: 'y' }]));
    assertWhole(queryRead);
    assert.ok(kinds(queryRead).includes('rope') && !kinds(queryRead).includes('rotate'));
    const gateRead = fuse(graphOf([...attention, ...dense], 'g'));
    assertWhole(gateRead);
    assert.ok(kinds(gateRead).includes('glu'));
  });

  test('what a fused operation has no place for stays as it is', () => {
    const without = (output: string) =>
      attention.map((operation): Operation => {
        if (operation.kind !== 'norm' || operation.output !== output) return operation;
        const { weight: _, ...unweighted } = operation;
        return unweighted;
      });
    // Norms without weights, of queries and of rows.
    const queries = fuse(graphOf([...without('qn'), ...dense]));
    assertWhole(queries);
    assert.ok(kinds(queries).includes('rope') && !kinds(queries).includes('rotate'));
    const rows = fuse(graphOf([...without('a'), ...dense]));
    assertWhole(rows);
    assert.deepEqual(kinds(rows).slice(0, 4), ['embed', 'norm', 'project', 'rotate']);
    assert.ok(rows.operations[2]?.kind === 'project' && rows.operations[2].norm === undefined);

    // Norms behind the rotation, a norm on values, and values that are the keys.
    const change = (changes: Readonly<Record<string, Operation>>, ...more: Operation[]) => {
      const changed = attention.map((operation) => changes[operation.output] ?? operation);
      const graph = { ...graphOf([...changed.slice(0, 8), ...more, ...changed.slice(8), ...dense]) };
      const fused = fuse({ ...graph, widths: { ...graph.widths, vn: 8 } });
      assertWhole(fused);
      return kinds(fused);
    };
    const mixed = attention[8] as AttentionOperation;
    const behind = change({
      qn: rope('q', 'qn'),
      qr: norm('qn', 'qr', 8),
      kn: rope('k', 'kn'),
      kr: norm('kn', 'kr', 8),
    });
    const valued = change({ mixed: { ...mixed, value: 'vn' } }, norm('v', 'vn', 8));
    const shared = change({ mixed: { ...mixed, value: 'k' } });
    for (const found of [behind, valued, shared]) assert.ok(!found.includes('rotate') && found.includes('attention'));
  });

  test('what attention does beyond its plain form stays with it', () => {
    const beyond = {
      reach: { kind: 'window', length: 4 },
      sinks: 's',
      temperature: { length: 8, scale: 0.1 },
    } as const;
    const asked = attention.map((operation) =>
      operation.kind === 'attention' ? { ...operation, ...beyond } : operation,
    );
    const fused = fuse(graphOf([...asked, ...dense]));
    assertWhole(fused);
    const attend = fused.operations.find(({ kind }) => kind === 'attention') as AttentionOperation;
    const { reach, sinks, temperature } = attend;
    assert.ok(attend.rotated !== undefined);
    assert.deepEqual({ reach, sinks, temperature }, beyond);
  });

  test('a gate that reads the same rows keeps their norm, and a norm behind a block its product', () => {
    const gate: Operation = {
      kind: 'gate',
      layer: 0,
      input: 'mixed',
      gate: 'hg',
      activation: 'softplus',
      output: 'gm',
    };
    const [output, residual] = [
      linear('gm', 'o'),
      { kind: 'add', layer: 0, left: 'x', right: 'on', output: 'h' },
    ] as const;
    const graph = graphOf([
      ...attention.slice(0, 4),
      linear('a', 'hg'),
      ...attention.slice(4, 9),
      gate,
      output,
      norm('o', 'on', 32),
      residual,
      ...dense,
    ]);
    const fused = fuse({ ...graph, widths: { ...graph.widths, hg: 2, gm: 16, on: 32 } });
    assertWhole(fused);
    assert.deepEqual(kinds(fused).slice(0, 10), [
      'embed',
      'norm',
      'project',
      'linear',
      'rotate',
      'attention',
      'gate',
      'linear',
      'norm',
      'add',
    ]);
  });

  test('a router with an input of its own keeps it', () => {
    const moe: Operation = {
      kind: 'moe',
      layer: 0,
      input: 'f',
      routerInput: 'a',
      prefix: 'm',
      moe: {
        experts: 4,
        used: 2,
        inner: 8,
        activation: 'silu',
        router: { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 },
      },
      output: 'y',
    };
    const fused = fuse(graphOf([norm('x', 'a', 32), norm('x', 'f', 32), moe]));
    assertWhole(fused);
    const made = fused.operations.at(-1) as Extract<Operation, { kind: 'moe' }>;
    assert.deepEqual([made.input, made.norm?.weight, made.routerInput], ['x', 'f.weight', 'a']);
    assert.deepEqual(kinds(fused), ['embed', 'norm', 'moe']);
  });

  test('values in their keys, a rotation from further on and a norm with a rest are left as they are', () => {
    const change = (output: string, more: object) =>
      attention.map((operation) =>
        operation.output === output ? ({ ...operation, ...more } as Operation) : operation,
      );
    for (const changed of [
      change('mixed', { value: undefined }),
      change('qr', { from: 4 }),
      change('kr', { from: 4 }),
      change('qn', { group: 4, rest: 4 }),
    ]) {
      const fused = fuse(graphOf([...changed, ...dense]));
      assertWhole(fused);
      assert.ok(!kinds(fused).includes('rotate'));
      const kept = (graph: readonly Operation[]) =>
        graph.filter(({ output }) => ['qn', 'kn', 'qr', 'kr', 'mixed'].includes(output));
      assert.deepEqual(kept(fused.operations), kept(changed));
    }
  });

  test('biases stay with their products, and a gate with one is not fused', () => {
    const biased = dense.map((operation) => (operation.output === 'g' ? { ...operation, bias: 'b' } : operation));
    const fused = fuse(graphOf([...attention, ...(biased as Operation[])]));
    assertWhole(fused);
    assert.ok(kinds(fused).includes('glu'));
  });
});

test('experts that are computed apart read what the fused layer reads', () => {
  const graph = buildGraph(mixedModel.spec);
  const fused = fuse(graph);
  const layers = new Set([1, 2]);
  const { operations } = expertsGraph(graph, layers);
  assert.deepEqual(expertsGraph(fused, layers).operations, operations);
  for (const operation of operations) {
    const layer = fused.operations.find(({ kind, layer: own }) => kind === 'moe' && own === operation.layer);
    assert.ok(operation.kind === 'experts' && layer?.kind === 'moe');
    assert.deepEqual([operation.input, operation.norm], [layer.input, layer.norm]);
    assert.ok(layer.norm !== undefined);
  }
});
