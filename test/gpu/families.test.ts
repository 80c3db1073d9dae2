/**
 * Whole models of the families whose attention or experts go beyond the plain form, on the GPU: official logits, in one prompt
 * and step by step, and the same greedy tokens.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { relativeRms, runTokens, withDevice } from '../support/device.ts';
import { familyFile, slackOf } from '../support/families.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { argmax } from '../support/reference.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

/** As on the CPU: weights are BF16 and F32 and the cache is f32, so only the order of sums is left. */
const MOST_DISTANCE = 2e-5;
const MOST_RMS = 2e-6;

after(closeGpuTestDevice);

for (const family of ['gpt-oss', 'gemma3', 'gemma4-moe', 'llama4', 'laguna', 'granitemoe', 'deepseek3']) {
  test(`${family}: official logits and greedy tokens`, async () => {
    const expected = readSafetensors(familyFile(family, 'expected.safetensors'));
    const tokens = i32Of(expected, 'tokens');
    const logits = f32Of(expected, 'logits');
    const slack = slackOf(family);
    const check = (found: Float32Array, official: Float32Array) => {
      const distance = found.reduce((worst, x, i) => Math.max(worst, Math.abs(x - (official[i] as number))), 0);
      assert.ok(distance <= slack * MOST_DISTANCE, `logits are off by ${distance}`);
      const error = relativeRms(found, official);
      assert.ok(error <= slack * MOST_RMS, `logits have a relative RMS of ${error}`);
    };
    await withDevice(
      familyFile(family, 'model.gguf'),
      { context: 64, batch: 32, cache: 'f32', device: 'gpu' },
      async (model) => {
        assert.ok(model.plan.operations.every(({ device }) => device === 'gpu'));
        const { vocabulary } = model.spec;
        check(await runTokens(model, tokens, 0, 'prompt'), logits);
        const half = tokens.length >> 1;
        for (let at = half; at < tokens.length; at++) {
          check(
            await runTokens(model, [tokens[at] as number], at, 'step'),
            logits.subarray(at * vocabulary, (at + 1) * vocabulary),
          );
        }
        const greedy = [argmax(logits.subarray(-vocabulary))];
        while (greedy.length < 16) {
          const position = tokens.length + greedy.length - 1;
          greedy.push(argmax(await runTokens(model, greedy.slice(-1), position, 'step')));
        }
        assert.deepEqual(greedy, [...i32Of(expected, 'greedy')]);
      },
      await gpuTestDevice(),
    );
  });
}
