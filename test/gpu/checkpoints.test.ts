/**
 * The GPU on the field's quantised layouts, against official outputs in f32: prompts in f32, and steps with activations of
 * bytes where the layout is coarser than they are (`test/golden/cpu-checkpoints.test.ts` says what that is worth).
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { relativeRms, runTokens, withDevice } from '../support/device.ts';
import { checkpointFile, checkpoints, int8RmsOf } from '../support/families.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

after(closeGpuTestDevice);

/** A cache of f16 holds eleven bits of keys and values. */
const CACHE = 1e-3;
/** Steps that are run: the others would show nothing more. */
const STEPS = 6;

for (const checkpoint of checkpoints) {
  const expected = readSafetensors(checkpointFile(checkpoint, 'expected.safetensors'));
  const tokens = i32Of(expected, 'tokens');
  const logits = f32Of(expected, 'logits');

  test(`${checkpoint}: official logits, in one prompt and step by step`, async () => {
    const path = checkpointFile(checkpoint, 'model.safetensors');
    await withDevice(
      path,
      { context: 64, device: 'gpu' },
      async (model) => {
        const error = relativeRms(await runTokens(model, tokens, 0, 'prompt'), logits);
        assert.ok(error <= CACHE, `prompt rows have a relative RMS of ${error}`);
        const { vocabulary } = model.spec;
        for (let at = 0; at < STEPS; at++) {
          const step = await runTokens(model, [tokens[at] as number], at, 'step');
          const own = relativeRms(step, logits.subarray(at * vocabulary, (at + 1) * vocabulary));
          assert.ok(
            own <= (checkpoint.includes('fp8') ? CACHE : int8RmsOf(checkpoint)),
            `step ${at} has a relative RMS of ${own}`,
          );
        }
      },
      await gpuTestDevice(),
    );
  });
}
