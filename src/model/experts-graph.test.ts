/** Experts by themselves: one operation a layer, over what stands in front of the layer's norm, with no other weights. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { families, familyFile } from '../../test/support/families.ts';
import { nodeModelSource } from '../../test/support/node-source.ts';
import { openModelFile } from '../format/open.ts';
import { cachedLayersOf, cutGraph, weightsOfGraph } from './cut.ts';
import { buildGraph } from './decoder.ts';
import { expertsGraph } from './experts-graph.ts';
import type { Graph } from './graph.ts';
import { inputsOf } from './inputs.ts';
import { readModel } from './read-model.ts';

async function modelOf(family: string) {
  const file = await openModelFile(await nodeModelSource(familyFile(family, 'model.gguf')));
  await file.close();
  const { spec, weights } = readModel(file);
  const graph = buildGraph(spec);
  const layers = spec.layers.flatMap(({ feedForward }, layer) => (feedForward.kind === 'moe' ? [layer] : []));
  return { spec, weights, graph, layers };
}

for (const family of families) {
  test(`${family}: the experts of a layer read the residual stream, normed as the layer norms it, and only their weights`, async () => {
    const { spec, weights, graph, layers } = await modelOf(family);
    const apart = expertsGraph(graph, new Set(layers));
    assert.deepEqual(
      apart.operations.map(({ kind, layer }) => [kind, layer]),
      layers.map((layer) => ['experts', layer]),
    );
    for (const operation of apart.operations) {
      assert.ok(operation.kind === 'experts');
      const at = `layers.${operation.layer}`;
      const { feedForward } = spec.layers[operation.layer] as (typeof spec.layers)[number];
      assert.deepEqual(operation.norm, { weight: `${at}.feedForward.norm`, epsilon: feedForward.norm.epsilon });
      assert.equal(operation.input, `${at}.attention.residual`);
      assert.deepEqual([apart.widths[operation.input], apart.widths[operation.output]], [spec.hidden, spec.hidden]);
      const own = weightsOfGraph({ ...apart, operations: [operation] }, weights);
      const matrices = ['moe.gate', 'moe.up', 'moe.down'];
      const biases = operation.moe.biases ? matrices.map((name) => `${name}.bias`) : [];
      const names = ['feedForward.norm', ...matrices, ...biases];
      assert.deepEqual([...own.keys()].sort(), names.map((name) => `${at}.${name}`).sort());
    }
    // Nobody else makes what they read or has what they make, and no cache belongs to them.
    const names = apart.operations.flatMap((operation) => [operation.output, ...inputsOf(operation)]);
    assert.equal(new Set(names).size, 2 * layers.length);
    assert.ok(apart.operations.every(({ output }) => !(output in graph.widths)));
    assert.equal(cachedLayersOf(apart).size, 0);
  });
}

test('what else the device runs follows as it is', async () => {
  const { graph, layers } = await modelOf('qwen3moe');
  const [, rest] = cutGraph(graph, [layers.length - 1]);
  const split = layers.slice(0, -1);
  const part = expertsGraph(graph, new Set(split), rest as Graph);
  assert.deepEqual(part.operations.slice(split.length), rest?.operations);
  assert.deepEqual(part.operations.slice(0, split.length), expertsGraph(graph, new Set(split.toReversed())).operations);
  assert.deepEqual([part.logits, part.hidden, part.outgoing], [rest?.logits, rest?.hidden, rest?.outgoing]);
  assert.deepEqual(part.widths, { ...rest?.widths, ...expertsGraph(graph, new Set(split)).widths });
  assert.deepEqual([...cachedLayersOf(part)], [layers.length - 1]);
});

test('a layer without experts is a fault that says which', async () => {
  const { graph } = await modelOf('qwen3');
  assert.throws(() => expertsGraph(graph, new Set([1])), { name: 'InternalError', message: /layer 1 has no experts/ });
});
