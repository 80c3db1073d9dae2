/**
 * Law 3 on trained models: the reference backend gives the recorded answers, text, ids and greedy tokens, one for one.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { load } from '../../src/index.ts';
import { BUNDLED, largeModel, modelTest } from '../support/models.ts';
import { folderModels, referenceModels } from '../support/references.ts';

test('the bundled model is part of the checkout', () => {
  assert.ok(largeModel(BUNDLED), `models/${BUNDLED} is missing`);
});

for (const { file, answers } of [...referenceModels, ...folderModels]) {
  modelTest(file, `${file}: the reference backend gives every recorded token`, async (path) => {
    const model = await load(path, { device: 'reference' });
    try {
      for (const { messages, text, ids, greedy, answer } of answers) {
        assert.equal(await model.applyTemplate(messages), text);
        assert.deepEqual(model.tokenize(text, { special: true, addBos: false }), ids, text);
        const session = model.session();
        const parts = [];
        for await (const part of session.generate(messages, {
          temperature: 0,
          maxTokens: greedy.length,
          ignoreEos: true,
        })) {
          parts.push(part);
        }
        const last = parts.at(-1);
        assert.ok(last?.type === 'finish');
        assert.deepEqual(last.tokens, greedy, answer);
        assert.equal(last.usage.promptTokens, ids.length);
        assert.equal(model.detokenize(greedy), answer);
        await session.dispose();
      }
    } finally {
      await model.dispose();
    }
  });
}
