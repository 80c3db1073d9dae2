/**
 * The CPU backend against official numbers (Hugging Face transformers, f32) on a tiny model of every family. Their weights
 * are BF16 and F32, so nothing is rounded to int8: with a cache of f32 only the order of sums is left, and a cache of f16
 * adds what 11 bits of a key or value lose.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import type { CacheType } from '../../src/backend/kernel.ts';
import { type TensorWithData, writeGguf } from '../../src/format/gguf-writer.ts';
import { openModelFile } from '../../src/format/open.ts';
import { memorySource } from '../../src/format/source.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import { backendOf, type DeviceModel, planFor, relativeRms, runTokens, withDevice } from '../support/device.ts';
import { families, familyFile, filesOf, slackOf } from '../support/families.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { argmax } from '../support/reference.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

/** Largest distance of a logit, of which the largest are about 4; the relative RMS is held to the operations' own bounds. */
const bounds: Readonly<Record<CacheType, { readonly distance: number; readonly relativeRms: number }>> = {
  f32: { distance: 2e-5, relativeRms: 2e-6 },
  f16: { distance: 5e-3, relativeRms: 1e-3 },
};

const expectedOf = (family: string) => readSafetensors(familyFile(family, 'expected.safetensors'));

function checkLogits(found: Float32Array, expected: Float32Array, cache: CacheType, slack = 1): void {
  assert.equal(found.length, expected.length);
  const distance = found.reduce((worst, x, i) => Math.max(worst, Math.abs(x - (expected[i] as number))), 0);
  assert.ok(distance <= slack * bounds[cache].distance, `logits are off by ${distance}`);
  const error = relativeRms(found, expected);
  assert.ok(error <= slack * bounds[cache].relativeRms, `logits have a relative RMS of ${error}`);
}

async function greedyAfter(model: DeviceModel, tokens: Int32Array, first: number, count: number): Promise<number[]> {
  const greedy = [first];
  while (greedy.length < count) {
    greedy.push(argmax(await runTokens(model, greedy.slice(-1), tokens.length + greedy.length - 1, 'step')));
  }
  return greedy;
}

for (const family of families) {
  describe(family, () => {
    const expected = expectedOf(family);
    const tokens = i32Of(expected, 'tokens');
    for (const [file, cache] of [
      ...filesOf(family).map((file) => [file, 'f32'] as const),
      ['model.gguf', 'f16'] as const,
    ]) {
      test(`${file}: official logits with a cache of ${cache}, in one prompt and step by step`, () =>
        withDevice(familyFile(family, file), { context: 64, cache }, async (model) => {
          const logits = await runTokens(model, tokens, 0, 'prompt');
          checkLogits(logits, f32Of(expected, 'logits'), cache, slackOf(family));
          const { vocabulary } = model.spec;
          const steps = new Float32Array(logits.length);
          for (const [at, token] of tokens.entries())
            steps.set(await runTokens(model, [token], at, 'step'), at * vocabulary);
          checkLogits(steps, f32Of(expected, 'logits'), cache, slackOf(family));
          if (cache === 'f16') return;
          const greedy = await greedyAfter(model, tokens, argmax(steps.subarray(-vocabulary)), 16);
          assert.deepEqual(greedy, [...i32Of(expected, 'greedy')]);
        }));
    }
  });
}

test('qwen2moe: a shared expert whose gate the file keeps as a vector is the same model', async () => {
  const file = await openModelFile(await nodeModelSource(familyFile('qwen2moe', 'model.gguf')));
  const whole = readFileSync(familyFile('qwen2moe', 'model.gguf'));
  const tensors = [...file.tensors.values()].map(
    ({ name, format, shape, offset, bytes }): TensorWithData => ({
      name,
      format,
      data: whole.subarray(offset, offset + bytes),
      shape: name.endsWith('ffn_gate_inp_shexp.weight') ? shape.slice(-1) : shape,
    }),
  );
  const changed = writeGguf({ metadata: Object.fromEntries(file.metadata), tensors });
  await file.close();
  assert.ok(tensors.some(({ name, shape }) => name.endsWith('ffn_gate_inp_shexp.weight') && shape.length === 1));

  const again = await openModelFile({ file: memorySource(changed), fileName: 'model.gguf' });
  const { spec, weights } = readModel(again);
  const graph = buildGraph(spec);
  const expected = expectedOf('qwen2moe');
  for (const device of ['cpu', 'reference'] as const) {
    const plan = planFor({ spec, graph, weights }, { context: 64, cache: 'f32', device });
    const executable = await backendOf(plan).prepare({ plan, spec, graph, weights, sources: again.sources });
    const logits = await runTokens({ spec, graph, weights, plan, executable }, i32Of(expected, 'tokens'), 0, 'prompt');
    checkLogits(logits, f32Of(expected, 'logits'), 'f32');
    await executable.dispose();
  }
});
