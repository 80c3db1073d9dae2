/**
 * Tiny models of families whole on the GPU: official logits (Hugging Face transformers, f32) at every position of a prompt
 * and step by step, and the same greedy tokens. Here are those whose graphs or routers no other suite on the GPU has whole.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { relativeRms, runTokens, withDevice } from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { argmax } from '../support/reference.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

/** Weights are BF16 and F32 and the cache is f32: only the order of sums is left, as on the CPU. */
const MOST_DISTANCE = 2e-5;
const MOST_RMS = 2e-6;

after(closeGpuTestDevice);

function checkLogits(found: Float32Array, expected: Float32Array, what: string): void {
  assert.equal(found.length, expected.length);
  const distance = found.reduce((worst, x, i) => Math.max(worst, Math.abs(x - (expected[i] as number))), 0);
  assert.ok(distance <= MOST_DISTANCE, `${what}: logits are off by ${distance}`);
  const error = relativeRms(found, expected);
  assert.ok(error <= MOST_RMS, `${what}: logits have a relative RMS of ${error}`);
}

for (const family of ['granitemoe', 'deepseek3']) {
  test(`${family}: official logits, in one prompt and step by step, and greedy tokens`, async () => {
    const expected = readSafetensors(familyFile(family, 'expected.safetensors'));
    const tokens = i32Of(expected, 'tokens');
    const official = f32Of(expected, 'logits');
    const options = { device: 'gpu', context: 64, batch: 32, cache: 'f32', threads: 1 } as const;
    await withDevice(
      familyFile(family, 'model.gguf'),
      options,
      async (model) => {
        checkLogits(await runTokens(model, tokens, 0, 'prompt'), official, 'prompt');
        const { vocabulary } = model.spec;
        const steps = new Float32Array(official.length);
        for (const [at, token] of tokens.entries()) {
          steps.set(await runTokens(model, [token], at, 'step'), at * vocabulary);
        }
        checkLogits(steps, official, 'steps');
        const greedy = [argmax(steps.subarray(-vocabulary))];
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
