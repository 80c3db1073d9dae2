/** What is known of how often experts are used, in a plan: it must be of this model, and of use; and the plan says which are first. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { aCard as adapter, type DeviceOptions, planFor } from '../../test/support/device.ts';
import { familyFile } from '../../test/support/families.ts';
import { nodeModelSource } from '../../test/support/node-source.ts';
import { UsageError } from '../errors.ts';
import { openModelFile } from '../format/open.ts';
import { buildGraph } from '../model/decoder.ts';
import { readModel } from '../model/read-model.ts';
import { explain } from './explain.ts';

async function planner() {
  const file = await openModelFile(await nodeModelSource(familyFile('qwen3moe', 'model.gguf')));
  await file.close();
  const { spec, weights } = readModel(file);
  const given = { spec, weights, graph: buildGraph(spec) };
  const counts = spec.layers.flatMap(({ feedForward }) =>
    feedForward.kind === 'moe' ? [new Float64Array(feedForward.moe.experts).fill(1)] : [],
  );
  return { counts, plan: (options: DeviceOptions) => planFor(given, { context: 64, adapter, ...options }) };
}

test('without it as many experts of each layer have slots, with it the most used; the plan says so', async () => {
  const { plan, counts } = await planner();
  for (const [policy, after] of [
    ['static', ''],
    ['lfu', ', at most \\d+ brought there a step'],
  ] as const) {
    const split = { device: 'gpu', expertCache: `${policy}:50%` } as const;
    const evenly = plan(split);
    assert.equal(evenly.experts?.first, 'evenly');
    const begin = policy === 'static' ? '' : 'at first ';
    assert.match(
      explain(evenly).replace(/\s+/g, ' '),
      new RegExp(`${policy}, ${begin}as many of each layer${after}\\)`),
    );
    const known = plan({ ...split, expertUses: counts });
    assert.equal(known.experts?.first, 'most used');
    assert.match(explain(known).replace(/\s+/g, ' '), new RegExp(`${policy}, ${begin}the most used${after}\\)`));
  }
});

test('uses of another model, and uses that nobody has a use for, are refused by name', async () => {
  const { plan, counts } = await planner();
  const [first] = counts as [Float64Array];
  const split = { device: 'gpu', expertCache: 'static:50%' } as const;
  for (const [options, message] of [
    [{ ...split, expertUses: counts.slice(1) }, /found \d+ layers of \d+ experts, expected \d+ layers of \d+ experts/],
    [{ ...split, expertUses: [] }, /found 0 layers of no experts/],
    [
      { ...split, expertUses: counts.map((_, layer) => (layer === 0 ? first.slice(1) : first)) },
      new RegExp(`of ${first.length - 1} or ${first.length} experts, expected \\d+ layers of ${first.length} experts`),
    ],
    [{ device: 'cpu', expertUses: counts }, /of use only where experts are split/],
    [{ device: 'gpu', expertUses: counts }, /of use only where experts are split/],
    [{ device: 'gpu', cpuMoe: true, expertUses: counts }, /no expert has a slot on the GPU/],
  ] as const) {
    assert.throws(
      () => plan(options),
      (error) =>
        error instanceof UsageError &&
        error.message.startsWith('expertUses (--expert-uses): ') &&
        message.test(error.message),
      message.source,
    );
  }
  // Where `auto` finds no GPU, nothing is split, and the plan says why.
  const fallen = plan({ device: 'auto', adapter: { ...adapter, software: true }, expertUses: counts });
  assert.equal(fallen.device, 'cpu');
});
