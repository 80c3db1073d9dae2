/**
 * The CPU backend on the field's quantised layouts, against official outputs in f32. FP8 takes activations as they are, so
 * that only the order of sums is left; NVFP4 and MXFP4 take experts' activations as int8, of which two layers of random
 * weights make a hundredth (`test/conformance/cpu-moe.test.ts` takes that rounding out, and finds no more).
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { relativeRms, runTokens, withDevice } from '../support/device.ts';
import { checkpointFile, checkpoints, int8RmsOf } from '../support/families.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

/** Where a router's best scores are all but equal, rounding may choose another expert for a row. */
const OTHER_EXPERT = { rows: 1, relativeRms: 0.1 };

for (const checkpoint of checkpoints) {
  const expected = readSafetensors(checkpointFile(checkpoint, 'expected.safetensors'));
  const tokens = i32Of(expected, 'tokens');
  const exact = checkpoint.includes('fp8');
  const limit = exact ? 2e-6 : int8RmsOf(checkpoint);

  const check = (found: Float32Array, what: string): void => {
    const width = found.length / tokens.length;
    const errors = Array.from(tokens, (_, row) => {
      const own = (values: Float32Array) => values.subarray(row * width, (row + 1) * width);
      return relativeRms(own(found), own(f32Of(expected, 'logits')));
    });
    const far = errors.filter((error) => !(error <= limit));
    assert.ok(far.length <= (exact ? 0 : OTHER_EXPERT.rows), `${what}: relative RMS of ${errors}`);
    assert.ok(
      far.every((error) => error <= OTHER_EXPERT.relativeRms),
      `${what}: ${far}`,
    );
  };

  test(`${checkpoint}: official logits, in one prompt and step by step, in small arenas too`, async () => {
    for (const arenaBytes of [undefined, 2 ** 20]) {
      const options = { context: 64, cache: 'f32', arenaBytes } as const;
      await withDevice(checkpointFile(checkpoint, 'model.safetensors'), options, async (model) => {
        const logits = await runTokens(model, tokens, 0, 'prompt');
        check(logits, 'a prompt');
        const steps = new Float32Array(logits.length);
        for (const [at, token] of tokens.entries()) {
          steps.set(await runTokens(model, [token], at, 'step'), at * model.spec.vocabulary);
        }
        check(steps, 'steps');
      });
    }
  });
}
