/** A model drafts for another one only where every id means the same to both. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Refusal } from '../../errors.ts';
import type { Tokenizer } from '../../tokenizer/index.ts';
import { checkSameVocabulary, type NamedTokenizer } from './vocabulary.ts';

/** A tokenizer of these texts, of which those that end in an exclamation mark are control tokens. */
function speaking(name: string, ...texts: readonly string[]): NamedTokenizer {
  const tokenizer: Pick<Tokenizer, 'vocabularySize' | 'text' | 'isSpecial'> = {
    vocabularySize: texts.length,
    text: (id) => (texts[id] as string).replace('!', ''),
    isSpecial: (id) => (texts[id] as string).endsWith('!'),
  };
  return { name, tokenizer: tokenizer as Tokenizer };
}

const refused = (reason: RegExp) => (error: unknown) => error instanceof Refusal && reason.test(error.message);

test('as many ids, the same text of each, and the same ones that are no text', () => {
  const model = speaking('large', 'a', 'b', '<end>!');
  checkSameVocabulary(model, speaking('small', 'a', 'b', '<end>!'));
  assert.throws(
    () => checkSameVocabulary(model, speaking('small', 'a', 'b')),
    refused(/small cannot draft for large: its vocabulary has 2 tokens; expected 3/),
  );
  assert.throws(
    () => checkSameVocabulary(model, speaking('small', 'a', 'c', '<end>!')),
    refused(/its token 1 is "c"; expected "b"/),
  );
  assert.throws(
    () => checkSameVocabulary(model, speaking('small', 'a', 'b', '<end>')),
    refused(/its token 2, "<end>", is text; expected a control token/),
  );
});
