/**
 * Trained models on the GPU, through the engine, which draws tokens on the device: the recorded greedy answer and on from there
 * the CPU's tokens, 64 in all, or a first difference where the best two tokens are all but equal, which is printed. One answer
 * a model: a software GPU is slow.
 */

import assert from 'node:assert/strict';
import '../support/gpu.ts';
import { load, type Model } from '../../src/index.ts';
import { modelTest } from '../support/models.ts';
import { referenceModels } from '../support/references.ts';

/** Tokens that are compared, beyond the end of the answer. */
const TOKENS = 64;

async function generate(model: Model, tokens: readonly number[], maxTokens: number): Promise<readonly number[]> {
  const session = model.session();
  try {
    for await (const part of session.generate({ tokens }, { temperature: 0, maxTokens, ignoreEos: true })) {
      if (part.type === 'finish') return part.tokens;
    }
    return assert.fail('generation ended without a finish');
  } finally {
    await session.dispose();
  }
}

/** How much better the CPU finds `token` than `other` after `tokens`. */
async function gapAfter(cpu: Model, tokens: readonly number[], token: number, other: number): Promise<number> {
  const logits = await cpu.logits(tokens);
  const last = logits.subarray(logits.length - cpu.info.vocabulary);
  return (last[token] as number) - (last[other] as number);
}

for (const { file, answers, limit } of referenceModels) {
  modelTest(file, `${file}: ${TOKENS} tokens on the GPU are the CPU's, and the recorded ones before`, async (path) => {
    const [answer] = answers;
    assert.ok(answer !== undefined);
    const options = { context: 256, batch: 64 };
    const cpu = await load(path, { ...options, device: 'cpu' });
    try {
      const expected = await generate(cpu, answer.ids, TOKENS);
      assert.deepEqual(expected.slice(0, answer.greedy.length), answer.greedy.slice(0, TOKENS));
      const gpu = await load(path, { ...options, device: 'gpu' });
      try {
        assert.equal(gpu.plan.device, 'gpu');
        const found = await generate(gpu, answer.ids, TOKENS);
        assert.equal(found.length, TOKENS);
        const at = found.findIndex((token, index) => token !== expected[index]);
        if (at === -1) return;
        const [token, other] = [expected[at] as number, found[at] as number];
        const gap = await gapAfter(cpu, [...answer.ids, ...expected.slice(0, at)], token, other);
        console.log(`${file}: the GPU parts from the CPU at token ${at}, gap ${gap}`);
        assert.ok(gap <= limit.gap, `token ${at}: ${other} for ${token}, a gap of ${gap}, and ${limit.gap} at most`);
      } finally {
        await gpu.dispose();
      }
    } finally {
      await cpu.dispose();
    }
  });
}
