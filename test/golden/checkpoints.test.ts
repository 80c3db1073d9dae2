/**
 * The field's quantised safetensors layouts against the official outputs of the dequantised weights, by Hugging Face
 * transformers in f32: FP8 with scales of 128×128 blocks (ragged at the edges) and of rows, NVFP4 as ModelOpt and as
 * compressed-tensors write it, one with a shared expert in BF16, and MXFP4. The tolerance is that of the families: the
 * weights are the same numbers.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { checkpointFile, checkpoints } from '../support/families.ts';
import { argmax, runRows, withReference } from '../support/reference.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

const TOLERANCE = 2e-4;
/** How near the best two logits of a recorded greedy token may be for the other one to be taken. */
const NEAR_TIE = 2 * TOLERANCE;

function worstError(found: Float32Array, expected: Float32Array): number {
  assert.equal(found.length, expected.length);
  return found.reduce((worst, value, i) => Math.max(worst, Math.abs(value - (expected[i] as number))), 0);
}

for (const checkpoint of checkpoints) {
  const expected = readSafetensors(checkpointFile(checkpoint, 'expected.safetensors'));
  const tokens = i32Of(expected, 'tokens');

  test(`${checkpoint}: official logits, hidden states and greedy tokens`, () =>
    withReference(checkpointFile(checkpoint, 'model.safetensors'), async (model) => {
      const logits = await runRows(model, tokens, 0, 'prompt');
      model.graph.hidden.forEach((name, layer) => {
        const error = worstError(model.executable.value(name), f32Of(expected, `hidden_${layer}`));
        assert.ok(error <= TOLERANCE, `hidden state ${layer} is off by ${error}`);
      });
      const error = worstError(logits, f32Of(expected, 'logits'));
      assert.ok(error <= TOLERANCE, `logits are off by ${error}`);
      let last = logits.subarray(-model.spec.vocabulary);
      for (const [step, token] of i32Of(expected, 'greedy').entries()) {
        const best = argmax(last);
        const gap = (last[best] as number) - (last[token] as number);
        assert.ok(gap <= NEAR_TIE, `greedy token ${step} is ${best}, ahead of ${token} by ${gap}`);
        last = await runRows(model, [token], tokens.length + step, 'step');
      }
    }));
}
