/**
 * Drafting on the CPU with the bundled model: the text is that of plain decoding, greedy or drawn, however long prompts are cut
 * and however many answer at once; and the model's own head saves the steps that it should.
 */

import assert from 'node:assert/strict';
import { ModelDrafts } from '../../src/engine/speculate/draft-model.ts';
import { LookupDrafts } from '../../src/engine/speculate/lookup.ts';
import { type DeviceModel, openDevice, withDevice } from '../support/device.ts';
import { BUNDLED, largeModel, modelTest, TWIN } from '../support/models.ts';
import { referenceModels } from '../support/references.ts';
import { type Decoded, decode, fiftyPrompts, mtpOf } from '../support/speculation.ts';

const options = { context: 320, sessions: 5, threads: 2, mtp: true } as const;

function same({ answers }: Decoded, plain: Decoded, what: string): void {
  for (const [prompt, answer] of answers.entries()) {
    assert.deepEqual(answer, plain.answers[prompt], `${what}, prompt ${prompt}`);
  }
}

function tokensPerStep({ stats }: Decoded): number {
  assert.ok(stats !== undefined && stats.steps > 0, 'nothing was drafted');
  return stats.tokens / stats.steps;
}

/** Tokens after each reference prompt, whether the answer has ended or not, as others measure it. */
const LONG = 128;
/** Of three that a step with two drafts can give. Another engine reaches 2.81 with the same head. */
const LEAST_TOKENS_A_STEP = 2.5;

modelTest(
  BUNDLED,
  'two drafts of its own head: fifty answers of 128 tokens are those of plain decoding',
  async (path) => {
    const prompts = await fiftyPrompts(path);
    assert.equal(prompts.length, 50);
    await withDevice(path, options, async (model) => {
      const plain = await decode(model, prompts, { maxTokens: LONG });
      const drafted = await decode(model, prompts, { maxTokens: LONG, source: mtpOf(model) });
      same(drafted, plain, 'greedy');
      assert.ok(tokensPerStep(drafted) > 2, `${tokensPerStep(drafted)} tokens a step`);
    });
  },
);

modelTest(BUNDLED, 'two drafts of its own head give 2.5 tokens a step on the reference prompts', async (path) => {
  const prompts = referenceModels[0]?.answers.map(({ ids }) => ids) ?? [];
  await withDevice(path, options, async (model) => {
    const drafted = await decode(model, prompts, { maxTokens: LONG, source: mtpOf(model) });
    const rate = tokensPerStep(drafted);
    assert.ok(rate >= LEAST_TOKENS_A_STEP, `${rate} tokens a step`);
    // Prompts that are cut small, and one request at a time: the head is fed the same rows.
    const cut = { promptRows: 5, atOnce: 1 };
    const again = await decode(model, prompts, { maxTokens: LONG, source: mtpOf(model, 5), ...cut });
    assert.ok(Math.abs(tokensPerStep(again) - rate) < 0.1, `${tokensPerStep(again)} tokens a step in small chunks`);
  });
});

modelTest(BUNDLED, 'drawn at a temperature, with penalties or without, the text is that of the seed', async (path) => {
  const prompts = (await fiftyPrompts(path)).slice(0, 5);
  await withDevice(path, options, async (model) => {
    for (const sampling of [
      { temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05 },
      { temperature: 1.2 },
      {
        temperature: 0.8,
        topK: 40,
        repeatPenalty: 1.3,
        presencePenalty: 0.3,
        frequencyPenalty: 0.2,
        penaltyWindow: 12,
      },
    ]) {
      const asked = { maxTokens: 64, sampling };
      const plain = await decode(model, prompts, asked);
      for (const drafts of [1, 3]) {
        same(await decode(model, prompts, { ...asked, source: mtpOf(model), drafts }), plain, JSON.stringify(sampling));
      }
      same(await decode(model, prompts, { ...asked, source: new LookupDrafts(), drafts: 7 }), plain, 'looked up');
      // Of two seeds not all answers are alike: what is compared is not greedy.
      const other = await decode(model, prompts, { maxTokens: 64, sampling: { ...sampling, seed: 1000 } });
      assert.notDeepEqual(other.answers, plain.answers);
    }
  });
});

modelTest(
  TWIN,
  'a draft model of the same vocabulary: the text is the same, and most drafts come true',
  async (twin) => {
    const path = largeModel(BUNDLED) as string;
    const prompts = (await fiftyPrompts(path)).slice(0, 12);
    await withDevice(path, options, async (model) => {
      const plain = await decode(model, prompts, { maxTokens: 64 });
      // One session's pages for five: timelines that rest give theirs up.
      for (const sessions of [5, 2]) {
        const draft: DeviceModel = await openDevice(twin, { context: 320, sessions, threads: 1 });
        const source = new ModelDrafts({ ...draft, vocabulary: draft.spec.vocabulary });
        try {
          const drafted = await decode(model, prompts, { maxTokens: 64, source, drafts: 3 });
          same(drafted, plain, `${sessions} sessions`);
          assert.ok(tokensPerStep(drafted) > 1.5, `${tokensPerStep(drafted)} tokens a step`);
        } finally {
          await source.dispose();
        }
      }
    });
  },
);

modelTest(BUNDLED, 'with the gate as it is, drafting comes and goes, and the text stays', async (path) => {
  const prompts = (await fiftyPrompts(path)).slice(20, 30);
  await withDevice(path, options, async (model) => {
    const plain = await decode(model, prompts, { maxTokens: LONG, atOnce: 1 });
    const gated = await decode(model, prompts, { maxTokens: LONG, atOnce: 1, source: mtpOf(model), gated: true });
    same(gated, plain, 'gated');
    const { stats } = gated;
    assert.ok(stats !== undefined && stats.steps > 0 && stats.plainSteps > 0, JSON.stringify(stats));
    // The head has been fed what it was not asked about: when it drafts again it is as good as ever.
    assert.ok(tokensPerStep(gated) > 2, `${tokensPerStep(gated)} tokens a step`);
  });
});

modelTest(
  BUNDLED,
  'layers on two devices: the head drafts where the last ones are, and the text is the same',
  async (path) => {
    const prompts = (await fiftyPrompts(path)).slice(0, 2);
    const cuts = [
      { device: 'reference', end: 1 },
      { device: 'cpu', end: 5 },
    ] as const;
    await withDevice(path, { ...options, cuts, threads: 1 }, async (model) => {
      const plain = await decode(model, prompts, { maxTokens: 16 });
      const drafted = await decode(model, prompts, { maxTokens: 16, source: mtpOf(model) });
      same(drafted, plain, 'two devices');
      assert.ok(tokensPerStep(drafted) > 1.5, `${tokensPerStep(drafted)} tokens a step`);
    });
  },
);
