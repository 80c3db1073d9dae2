/**
 * Trained models on the GPU, through the engine, which draws tokens on the device: the recorded greedy answer and on from there
 * the CPU's tokens, 64 in all (of the dense model, whose head alone takes a software GPU a second, its answer's 8), or a first
 * difference where the best two tokens are all but equal, which is printed.
 */

import assert from 'node:assert/strict';
import '../support/gpu.ts';
import { load, type Model } from '../../src/index.ts';
import { modelTest, SMOLLM2 } from '../support/models.ts';
import { referenceModels } from '../support/references.ts';

/** Tokens that are compared, beyond the end of the answer. */
const tokensOf = (file: string) => (file === SMOLLM2 ? 8 : 64);

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
  const count = tokensOf(file);
  modelTest(file, `${file}: ${count} tokens on the GPU are the CPU's, and the recorded ones before`, async (path) => {
    const [answer] = answers;
    assert.ok(answer !== undefined);
    const options = { context: 256, batch: 64 };
    const cpu = await load(path, { ...options, device: 'cpu' });
    try {
      const expected = await generate(cpu, answer.ids, count);
      assert.deepEqual(expected.slice(0, answer.greedy.length), answer.greedy.slice(0, count));
      const gpu = await load(path, { ...options, device: 'gpu' });
      try {
        assert.equal(gpu.plan.device, 'gpu');
        const found = await generate(gpu, answer.ids, count);
        assert.equal(found.length, count);
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
