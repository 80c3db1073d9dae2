/**
 * Ids equal those of the models' own tokenizers: recorded vectors of four vocabularies, and 400 random texts that the
 * Python package `tokenizers` cut (by the expressions of the models' tokenizer.json) and encoded.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { openGguf } from '../../src/format/gguf.ts';
import { readTokenizer, type Tokenizer } from '../../src/tokenizer/index.ts';
import { preTokenizer, splitWords } from '../../src/tokenizer/pre-tokenizer.ts';
import { BUNDLED, largeModel } from '../support/models.ts';
import { nodeByteSource } from '../support/node-source.ts';
import {
  type FixtureVocabulary,
  fixtureCases,
  fixtureJson,
  fixtureTokenizer,
  fixtureVocabularies,
  seededRandom,
} from '../support/vocabularies.ts';

interface Pieces {
  readonly texts: readonly string[];
  /** By pre-tokenizer: the words of each text. */
  readonly pieces: Readonly<Record<string, readonly (readonly string[])[]>>;
  /** By vocabulary: the ids of each text. */
  readonly ids: Readonly<Record<string, readonly (readonly number[])[]>>;
}

const recorded = fixtureJson('pieces.json.gz') as Pieces;

async function tokenizerOf(path: string): Promise<Tokenizer> {
  const file = await openGguf({ file: await nodeByteSource(path), fileName: 'model.gguf' });
  try {
    return readTokenizer(file.metadata, path);
  } finally {
    await file.close();
  }
}

for (const name of fixtureVocabularies) {
  test(`${name}: recorded ids, exactly, and back to the same text`, async () => {
    const tokenizer = await fixtureTokenizer(name);
    const cases = fixtureCases(name);
    assert.ok(cases.length > 40);
    for (const { text, ids } of cases) {
      assert.deepEqual(tokenizer.encode(text), ids, JSON.stringify(text));
      assert.equal(tokenizer.decode(ids), text);
    }
  });

  test(`${name}: random texts come back whole, and special tokens too`, async () => {
    const tokenizer = await fixtureTokenizer(name);
    for (const text of recorded.texts) {
      assert.equal(tokenizer.decode(tokenizer.encode(text)), text);
      const withSpecial = `${text}${tokenizer.text(tokenizer.eos!)}${text}`;
      const ids = tokenizer.encode(withSpecial, { special: true });
      assert.equal(ids.filter((id) => id === tokenizer.eos).length, 1);
      assert.equal(tokenizer.decode(ids, { special: true }), withSpecial);
      assert.equal(tokenizer.encode(withSpecial).includes(tokenizer.eos!), false);
    }
  });

  test(`${name}: words of 100,000 characters without a space`, async () => {
    const tokenizer = await fixtureTokenizer(name);
    const random = seededRandom(3);
    const letters = Array.from({ length: 100_000 }, () => String.fromCharCode(97 + random(26))).join('');
    for (const word of [
      letters,
      'a'.repeat(100_000),
      '\u6F22'.repeat(100_000),
      '!'.repeat(100_000),
      ' '.repeat(100_000),
    ]) {
      const ids = tokenizer.encode(word);
      assert.equal(tokenizer.decode(ids), word);
      assert.ok(ids.length > 0);
    }
  });
}

for (const [name, words] of Object.entries(recorded.pieces)) {
  test(`pre-tokenizer ${name} cuts as the reference does`, () => {
    const pre = preTokenizer(name, 'test');
    recorded.texts.forEach((text, i) => {
      assert.deepEqual(splitWords(text, pre), words[i]);
    });
  });
}

test('ids of random texts: the vocabulary of the bundled model and of the families', async () => {
  const paths: Readonly<Record<string, string>> = {
    lexicon: largeModel(BUNDLED)!,
    families: fileURLToPath(new URL('../fixtures/families/qwen3/model.gguf', import.meta.url)),
  };
  assert.deepEqual(Object.keys(recorded.ids).sort(), Object.keys(paths).sort());
  for (const [name, path] of Object.entries(paths)) {
    const tokenizer = await tokenizerOf(path);
    recorded.texts.forEach((text, i) => {
      assert.deepEqual(tokenizer.encode(text), recorded.ids[name]![i], JSON.stringify(text));
    });
  }
});

test('what the vocabularies say about themselves', async () => {
  const expected: Readonly<Record<FixtureVocabulary, object>> = {
    'gpt-2': { bos: 50256, eos: 50256, addBos: false, ends: [50256] },
    'llama-bpe': { bos: 128000, eos: 128001, addBos: true, ends: [128001, 128009] },
    'llama-spm': { bos: 1, eos: 2, addBos: true, ends: [2] },
    qwen2: { bos: 151643, eos: 151643, addBos: false, ends: [151643, 151645] },
  };
  for (const name of fixtureVocabularies) {
    const { bos, eos, addBos, endOfGeneration } = await fixtureTokenizer(name);
    assert.deepEqual({ bos, eos, addBos, ends: [...endOfGeneration].sort((a, b) => a - b) }, expected[name]);
  }
});
