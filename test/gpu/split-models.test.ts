/**
 * Trained models with some layers on the GPU, and some experts of these: finite logits, and the CPU's greedy tokens. Elsewhere
 * such a run decoded nothing: not a number, and then the first token for ever. `full-matrix.ts` tries all that there is.
 */

import assert from 'node:assert/strict';
import { after, describe } from 'node:test';
import { load } from '../../src/index.ts';
import type { DeviceOptions } from '../support/device.ts';
import { checkGreedy, closeKept, type Expected, expectedAnswer } from '../support/greedy.ts';
import { BUNDLED, modelTest, TWIN } from '../support/models.ts';
import { referenceModels } from '../support/references.ts';

const base: DeviceOptions = { context: 128, batch: 64, threads: 2 };

after(closeKept);

/** Few tokens where many layers are on a software GPU: seconds each. */
const cases: Readonly<Record<string, readonly (DeviceOptions & { readonly tokens: number })[]>> = {
  [TWIN]: [
    { gpuLayers: 1, tokens: 16 },
    { gpuLayers: 1, expertCache: 'slru:4', tokens: 64 },
    { gpuLayers: 3, expertCache: 'lfu:5', tokens: 16 },
    { gpuLayers: -1, expertCache: 'slru:1', tokens: 6 },
    { gpuLayers: -1, expertCache: 'slru:50%', tokens: 6 },
    { gpuLayers: -1, expertCache: 'static:95%', tokens: 6 },
  ],
  [BUNDLED]: [
    { gpuLayers: 2, cpuMoe: true, tokens: 16 },
    { gpuLayers: -1, expertCache: 'slru:25%', tokens: 6 },
  ],
};

for (const { file, answers, limit } of referenceModels) {
  const own = cases[file];
  if (own === undefined) continue;
  const [answer] = answers;
  assert.ok(answer !== undefined);
  let expected: Promise<Expected> | undefined;
  describe(file, () => {
    for (const { tokens: count, ...options } of own) {
      modelTest(file, `${JSON.stringify(options)}: ${count} tokens are the CPU's`, async (path) => {
        const asked = { prompt: answer.ids, count: 64, gap: limit.gap };
        expected ??= expectedAnswer(path, base, asked);
        const said = await checkGreedy(path, { ...base, ...options }, { expected: await expected, count });
        if (said !== undefined) console.log(`${file}, ${JSON.stringify(options)}: ${said}`);
      });
    }
  });
}

modelTest(TWIN, 'the library answers with experts on both devices as it does with all on one', async (path) => {
  const [answer] = referenceModels.find(({ file }) => file === TWIN)?.answers ?? [];
  assert.ok(answer !== undefined);
  const model = await load(path, { gpuLayers: 1, expertCache: 'slru:4', context: 128, batch: 64, threads: 2 });
  try {
    assert.deepEqual([model.plan.experts?.slots, model.plan.experts?.experts], [4, 16]);
    let text = '';
    const asked = model.session().generate(answer.messages, { temperature: 0, maxTokens: 8 });
    for await (const part of asked) if (part.type === 'text') text += part.text;
    assert.ok(text.length > 0 && answer.answer.startsWith(text.trimEnd()), text);
  } finally {
    await model.dispose();
  }
});
