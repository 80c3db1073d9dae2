/** The graphs of a plan's parts: layers and experts are each in one place, and a part that only computes experts runs nothing. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { familyFile } from '../../test/support/families.ts';
import { nodeModelSource } from '../../test/support/node-source.ts';
import { openModelFile } from '../format/open.ts';
import { cutGraph } from './cut.ts';
import { buildGraph } from './decoder.ts';
import type { Graph, Operation } from './graph.ts';
import { graphsOfParts, runsLayers } from './part-graphs.ts';
import { readModel } from './read-model.ts';

async function graphOf(family: string): Promise<Graph> {
  const file = await openModelFile(await nodeModelSource(familyFile(family, 'model.gguf')));
  await file.close();
  return buildGraph(readModel(file).spec);
}

const layersOf = ({ operations }: Graph, kind: 'moe' | 'experts') =>
  operations.flatMap((operation) => (operation.kind === kind ? [operation.layer] : []));
const splitOf = ({ operations }: Graph) =>
  operations.flatMap((operation) => (operation.kind === 'moe' && operation.split === true ? [operation.layer] : []));
/** The same graph with all experts where their layers are. */
const whole = (graph: Graph): Graph => ({
  ...graph,
  operations: graph.operations.flatMap((operation): Operation[] => {
    if (operation.kind === 'experts') return [];
    if (operation.kind !== 'moe') return [operation];
    const { split: _, ...rest } = operation;
    return [rest];
  }),
});

describe('parts', () => {
  test('without split experts are the cut graph', async () => {
    const graph = await graphOf('qwen3moe');
    assert.deepEqual(graphsOfParts(graph, [{ first: 0, end: 3 }]), [graph]);
    const parts = [
      { first: 0, end: 1 },
      { first: 1, end: 3 },
    ];
    assert.deepEqual(graphsOfParts(graph, parts), cutGraph(graph, [1]));
  });

  test('of which one only computes experts: the other is the whole graph with its layers marked', async () => {
    const graph = await graphOf('qwen3moe');
    for (const split of [[0, 1, 2], [1], [0, 2]]) {
      const parts = [
        { first: 0, end: 3, split },
        { first: 3, end: 3, experts: split },
      ];
      assert.deepEqual(parts.map(runsLayers), [true, false]);
      const [main, apart] = graphsOfParts(graph, parts);
      assert.ok(main !== undefined && apart !== undefined);
      assert.deepEqual(splitOf(main), split);
      assert.deepEqual(whole(main), graph);
      assert.deepEqual(layersOf(apart, 'experts'), split);
      assert.equal(apart.operations.length, split.length);
      // Nothing of it can be run.
      assert.equal(apart.logits, '');
    }
  });

  test('of which one has layers of its own beside others’ experts', async () => {
    const graph = await graphOf('qwen3moe');
    const cut = cutGraph(graph, [2]);
    const parts = [
      { first: 0, end: 2, split: [0, 1] },
      { first: 2, end: 3, experts: [0, 1] },
    ];
    assert.deepEqual(parts.map(runsLayers), [true, true]);
    const made = graphsOfParts(graph, parts);
    assert.deepEqual(splitOf(made[0] as Graph), [0, 1]);
    assert.deepEqual(splitOf(made[1] as Graph), []);
    assert.deepEqual(layersOf(made[1] as Graph, 'moe'), [2]);
    assert.deepEqual(layersOf(made[1] as Graph, 'experts'), [0, 1]);
    assert.deepEqual(
      made.map(whole).map(({ operations }) => operations),
      cut.map(({ operations }) => operations),
    );
    for (const [index, { outgoing, logits }] of cut.entries()) {
      assert.deepEqual([made[index]?.outgoing, made[index]?.logits], [outgoing, logits]);
    }
    // What an experts operation reads and makes has a width where it is.
    for (const operation of (made[1] as Graph).operations) {
      if (operation.kind !== 'experts') continue;
      const { widths } = made[1] as Graph;
      assert.equal(widths[operation.input], graph.widths[operation.input]);
      assert.equal(widths[operation.output], widths[operation.input]);
    }
  });

  test('leave the given graph as it is', async () => {
    const graph = await graphOf('glm4moe');
    const before = structuredClone(graph);
    graphsOfParts(graph, [
      { first: 0, end: 3, split: [1, 2] },
      { first: 3, end: 3, experts: [1, 2] },
    ]);
    assert.deepEqual(graph, before);
  });
});
