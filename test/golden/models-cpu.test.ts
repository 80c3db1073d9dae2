/**
 * The CPU backend on trained models. Its activations are int8, so it may part from float32 arithmetic where the best
 * two tokens are all but equal: how often and how far is held to what another engine's int8 path does on the same
 * prompts. Each parting is printed, and the walk goes on along the recorded tokens.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { load, type Model } from '../../src/index.ts';
import { modelTest, SMOLLM2 } from '../support/models.ts';
import { folderModels, type PartingLimit, type ReferenceAnswer, referenceModels } from '../support/references.ts';

interface Parting {
  readonly answer: ReferenceAnswer;
  /** Which of the greedy tokens. */
  readonly step: number;
  readonly found: number;
}

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

/** Walks the answer through step rows: decodes until the first parting, then starts again behind it. */
async function stepPartings(model: Model, answer: ReferenceAnswer): Promise<Parting[]> {
  const { ids, greedy } = answer;
  const partings: Parting[] = [];
  for (let at = 0; at < greedy.length; ) {
    const made = await generate(model, [...ids, ...greedy.slice(0, at)], greedy.length - at);
    assert.equal(made.length, greedy.length - at);
    const same = made.findIndex((token, index) => token !== greedy[at + index]);
    if (same === -1) break;
    partings.push({ answer, step: at + same, found: made[same] ?? -1 });
    at += same + 1;
  }
  return partings;
}

/** Walks the answer through prompt rows: the best token after each position of prompt and answer in one pass. */
async function promptPartings(model: Model, answer: ReferenceAnswer): Promise<Parting[]> {
  const { ids, greedy } = answer;
  const vocabulary = model.info.vocabulary;
  const logits = await model.logits([...ids, ...greedy.slice(0, -1)]); // [ids + greedy − 1, vocabulary]
  assert.equal(logits.length, (ids.length + greedy.length - 1) * vocabulary);
  const partings: Parting[] = [];
  greedy.forEach((expected, step) => {
    const row = logits.subarray((ids.length - 1 + step) * vocabulary, (ids.length + step) * vocabulary);
    let found = 0;
    for (let id = 1; id < vocabulary; id++) if ((row[id] ?? Number.NaN) > (row[found] ?? Number.NaN)) found = id;
    if (found !== expected) partings.push({ answer, step, found });
  });
  return partings;
}

/** Prints each parting, and says what is too many or too far. */
function faults(model: Model, rows: string, partings: readonly Parting[], limit: PartingLimit): string[] {
  for (const { answer, step, found } of partings) {
    const question = answer.messages.at(-1)?.content ?? '';
    const token = (id: number | undefined) => JSON.stringify(model.detokenize([id ?? -1], { special: true }));
    console.log(
      `${model.info.name}, ${rows} rows: parts at token ${step} of ${JSON.stringify(question)}: ${token(found)} for ` +
        `${token(answer.greedy[step])}, gap ${answer.gap[step]}`,
    );
  }
  const largest = Math.max(0, ...partings.map(({ answer, step }) => answer.gap[step] ?? Number.POSITIVE_INFINITY));
  console.log(`${model.info.name}, ${rows} rows: ${partings.length} partings, the largest gap ${largest}`);
  return [
    ...(partings.length > limit.count
      ? [`${partings.length} partings in ${rows} rows, and ${limit.count} at most`]
      : []),
    ...(largest > limit.gap ? [`a parting in ${rows} rows at a gap of ${largest}, and ${limit.gap} at most`] : []),
  ];
}

for (const { file, answers, limit } of [...referenceModels, ...folderModels]) {
  modelTest(file, `${file}: the CPU backend parts from the reference only where the gap is small`, async (path) => {
    const model = await load(path, { device: 'cpu' });
    try {
      const steps: Parting[] = [];
      const prompts: Parting[] = [];
      for (const answer of answers) {
        steps.push(...(await stepPartings(model, answer)));
        prompts.push(...(await promptPartings(model, answer)));
      }
      assert.deepEqual([...faults(model, 'step', steps, limit), ...faults(model, 'prompt', prompts, limit)], []);
    } finally {
      await model.dispose();
    }
  });
}

modelTest(SMOLLM2, `${SMOLLM2} says Paris when asked for the capital of France`, async (path) => {
  const model = await load(path);
  try {
    let text = '';
    const messages = [{ role: 'user', content: 'What is the capital of France?' }];
    for await (const part of model.session().generate(messages, { temperature: 0, maxTokens: 16 })) {
      if (part.type === 'text') text += part.text;
    }
    assert.match(text, /\bParis\b/);
  } finally {
    await model.dispose();
  }
});

test('the limits are those of the recorded answers: some steps are close enough to part, most are not', () => {
  for (const { answers, limit } of referenceModels) {
    const gaps = answers.flatMap(({ gap }) => gap);
    const close = gaps.filter((gap) => gap <= limit.gap).length;
    assert.ok(close >= limit.count && close < gaps.length / 3);
    for (const { gap, greedy } of answers) assert.equal(gap.length, greedy.length);
  }
});
