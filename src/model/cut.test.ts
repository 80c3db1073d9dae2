/** A cut graph computes what the whole one does: every operation once, in order, and one value across each border. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { families, familyFile } from '../../test/support/families.ts';
import { nodeModelSource } from '../../test/support/node-source.ts';
import { openModelFile } from '../format/open.ts';
import { cachedLayersOf, cutGraph, weightsOfGraph } from './cut.ts';
import { buildGraph } from './decoder.ts';
import { readModel } from './read-model.ts';

for (const family of families) {
  test(`${family}: at every border the parts have all operations and all weights, and hand on the residual stream`, async () => {
    const file = await openModelFile(await nodeModelSource(familyFile(family, 'model.gguf')));
    await file.close();
    const { spec, weights } = readModel(file);
    const graph = buildGraph(spec);
    const layers = spec.layers.length;
    assert.ok(layers > 1);
    for (let border = 1; border < layers; border++) {
      const [first, second] = cutGraph(graph, [border]);
      assert.ok(first !== undefined && second !== undefined);
      const [incoming, ...rest] = second.operations;
      assert.deepEqual([...first.operations, ...rest], graph.operations);
      const stream = graph.hidden[border];
      assert.deepEqual(incoming, { kind: 'incoming', layer: border, output: stream });
      assert.deepEqual([first.outgoing, first.logits], [stream, stream]);
      assert.deepEqual([second.outgoing, second.logits], [undefined, graph.logits]);
      assert.deepEqual({ ...first.widths, ...second.widths }, graph.widths);
      assert.ok(!('logits' in first.widths) && !('embedded' in second.widths));
      assert.deepEqual([...cachedLayersOf(first)], [...Array(layers).keys()].slice(0, border));
      assert.deepEqual([...cachedLayersOf(second)], [...Array(layers).keys()].slice(border));
      const named = [first, second].map((part) => weightsOfGraph(part, weights));
      assert.deepEqual(new Set(named.flatMap((each) => [...each.keys()])), new Set(weights.keys()));
      const shared = [...(named[0] ?? new Map()).keys()].filter((name) => named[1]?.has(name));
      const factored = spec.layers.map(({ attention }) => attention.rope?.scaling.kind === 'factors');
      const ropeFactors = factored.slice(0, border).includes(true) && factored.slice(border).includes(true);
      const both = [...(spec.head.tied ? ['embedding'] : []), ...(ropeFactors ? ['ropeFactors'] : [])];
      assert.deepEqual(shared.sort(), both.sort());
    }
  });
}

test('no border is the whole graph, and several borders hand on from part to part', async () => {
  const file = await openModelFile(await nodeModelSource(familyFile('glm4moe', 'model.gguf')));
  await file.close();
  const { spec, weights } = readModel(file);
  const graph = buildGraph(spec);
  assert.deepEqual(cutGraph(graph, []), [graph]);
  assert.deepEqual(weightsOfGraph(graph, weights), weights);
  const parts = cutGraph(graph, [1, 2]);
  assert.equal(parts.length, 3);
  assert.equal(parts[1]?.operations[0]?.output, parts[0]?.outgoing);
  assert.equal(parts[2]?.operations[0]?.output, parts[1]?.outgoing);
});

test('a cut that two values cross is a fault, told by their names', () => {
  const norm = { kind: 'norm', layer: 1, weight: 'w', epsilon: 1, group: 4 } as const;
  const graph = {
    operations: [
      { kind: 'embed', layer: -1, weight: 'a', output: 'x' },
      { kind: 'embed', layer: 0, weight: 'b', output: 'y' },
      { ...norm, input: 'x', output: 'p' },
      { ...norm, input: 'y', output: 'q' },
    ],
    widths: { x: 4, y: 4, p: 4, q: 4 },
    logits: 'q',
    hidden: [],
  } as const;
  assert.throws(() => cutGraph(graph, [1]), { name: 'InternalError', message: /crosses 2 values \(x, y\)/ });
});
