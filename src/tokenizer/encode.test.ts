/** Merging, special tokens, and ids of templated text. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { seededRandom, smallBytePairs, smallSentencePiece } from '../../test/support/vocabularies.ts';
import { Refusal } from '../errors.ts';
import { meta } from '../format/gguf-writer.ts';
import { readTokenizer } from './index.ts';

const merges = ['l l', 'h e', 'he ll', 'o o', 'hell o', 'll o', 'a b', 'b c', 'ab c'];

/** Applies to a word, again and again, the merge learnt first, at its leftmost place. */
function mergeByHand(word: string): string[] {
  const symbols = [...word];
  for (;;) {
    let best = { rank: Number.POSITIVE_INFINITY, at: -1 };
    for (let at = 0; at + 1 < symbols.length; at++) {
      const rank = merges.indexOf(`${symbols[at]} ${symbols[at + 1]}`);
      if (rank >= 0 && rank < best.rank) best = { rank, at };
    }
    if (best.at < 0) return symbols;
    symbols.splice(best.at, 2, symbols[best.at]! + symbols[best.at + 1]!);
  }
}

test('merges are applied in the order in which they were learnt, the leftmost first', () => {
  const tokenizer = readTokenizer(smallBytePairs({ merges }), 'm');
  const random = seededRandom(1);
  for (let round = 0; round < 2000; round++) {
    const word = Array.from({ length: 1 + random(90) }, () => 'heloabc'[random(7)]).join('');
    assert.deepEqual(
      tokenizer.encode(word).map((id) => tokenizer.text(id)),
      mergeByHand(word),
    );
  }
});

test('a word in the vocabulary is one token where the pre-tokenizer ignores merges', () => {
  const build = (pre: string) =>
    readTokenizer(smallBytePairs({ merges: ['x y', 'xy z'], more: { 'tokenizer.ggml.pre': meta.string(pre) } }), 'm');
  const tokens = (pre: string, merge: string) => {
    const metadata = smallBytePairs({ merges: ['x y', 'xy z'], more: { 'tokenizer.ggml.pre': meta.string(pre) } });
    metadata.set('tokenizer.ggml.merges', meta.array('string', [merge]));
    return readTokenizer(metadata, 'm').encode('xyz');
  };
  assert.deepEqual(build('qwen2').encode('xyz'), [257]);
  assert.deepEqual(tokens('llama-bpe', 'x y'), [257]);
  assert.deepEqual(tokens('qwen2', 'x y'), [256, 0x7a]);
});

test('control tokens are read from text only when asked for, user-defined ones always', () => {
  const tokenizer = readTokenizer(
    smallBytePairs({ control: ['<|a|>', '<|a|>b', '<|b|>'], userDefined: ['<think>'] }),
    'm',
  );
  const [a, ab, b, think] = [256, 257, 258, 259];
  assert.deepEqual(tokenizer.encode('x<|a|>', { special: true }), [0x78, a]);
  assert.deepEqual(tokenizer.encode('<|a|>b<|a|><|b|>', { special: true }), [ab, a, b]); // the longest that begins leftmost
  assert.equal(
    tokenizer.encode('x<|a|>y').some((id) => id >= 256),
    false,
  );
  assert.deepEqual(tokenizer.encode('<think>x'), [think, 0x78]);
  assert.deepEqual(tokenizer.controlTexts, ['<|a|>', '<|a|>b', '<|b|>']);
});

test('templated text: no control token that touches content, and otherwise the ids of the whole text', () => {
  const tokenizer = readTokenizer(smallBytePairs({ merges, control: ['<|a|>', '<|b|>'] }), 'm');
  const text = 'x<|a|>hello<|b|>hello<|a|>';
  assert.deepEqual(tokenizer.encodeTemplated({ text, content: [] }), tokenizer.encode(text, { special: true }));
  // Content between the tokens changes nothing, not even where it abuts them.
  assert.deepEqual(
    tokenizer.encodeTemplated({ text, content: [6, 11, 16, 21] }),
    tokenizer.encode(text, { special: true }),
  );
  for (const content of [
    [11, 16],
    [11, 12],
    [15, 16],
    [12, 14],
    [6, 13],
  ]) {
    const ids = tokenizer.encodeTemplated({ text, content });
    assert.deepEqual(
      ids.filter((id) => id === 265 || id === 266),
      [265, 265],
      String(content),
    );
    assert.equal(tokenizer.decode(ids, { special: true }), text);
  }
});

test('templated text begins with BOS once where the file asks for it', () => {
  const more = { 'tokenizer.ggml.bos_token_id': meta.u32(256), 'tokenizer.ggml.add_bos_token': meta.bool(true) };
  const tokenizer = readTokenizer(smallBytePairs({ control: ['<s>'], more }), 'm');
  assert.deepEqual(tokenizer.encodeTemplated({ text: 'x', content: [] }), [256, 0x78]);
  assert.deepEqual(tokenizer.encodeTemplated({ text: '<s>x', content: [] }), [256, 0x78]);
  const fromContent = tokenizer.encodeTemplated({ text: '<s>x', content: [0, 4] });
  assert.equal(fromContent.filter((id) => id === 256).length, 1);
  assert.equal(tokenizer.decode(fromContent), '<s>x');
});

test('lone surrogates become U+FFFD', () => {
  const tokenizer = readTokenizer(smallBytePairs({}), 'm');
  assert.equal(tokenizer.decode(tokenizer.encode('a\uD800b')), 'a\uFFFDb');
});

const pieces: readonly (readonly [string, number, number])[] = [
  ['<unk>', 0, 2],
  ['<s>', 0, 3],
  ['</s>', 0, 3],
  ...Array.from(
    { length: 256 },
    (_, byte) => [`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`, 0, 6] as const,
  ),
  ['\u2581', -9, 1],
  ['a', -9, 1],
  ['b', -9, 1],
  ['<', -9, 1],
  ['s', -9, 1],
  ['>', -9, 1],
  ['<s', -1, 1],
  ['s>', -2, 1],
  ['ab', -3, 1],
  ['\u2581a', -4, 1],
  ['aba', -2, 5],
  ['abab', -1, 1],
  ['ba', -5, 1],
  ['/', -9, 1],
];

test('SentencePiece: the best score first, bytes for what has no token, spaces as U+2581', () => {
  const tokenizer = readTokenizer(smallSentencePiece(pieces), 'm');
  const texts = (text: string) => tokenizer.encode(text).map((id) => pieces[id]![0]);
  assert.deepEqual(texts('ab'), ['\u2581', 'ab']);
  assert.deepEqual(texts('a a'), ['\u2581a', '\u2581a']);
  assert.deepEqual(texts('\u00e9'), ['\u2581', '<0xC3>', '<0xA9>']);
  assert.deepEqual(texts('\u{1F600}'), ['\u2581', '<0xF0>', '<0x9F>', '<0x98>', '<0x80>']);
  for (const text of ['ab', ' ab', 'a  b ', '\u00e9\u{1F600}\n', '', ' ', '  '])
    assert.equal(tokenizer.decode(tokenizer.encode(text)), text);
});

test('SentencePiece: an unused token is only a step on the way, and is taken apart again', () => {
  const tokenizer = readTokenizer(smallSentencePiece(pieces), 'm');
  const texts = (text: string) => tokenizer.encode(text).map((id) => pieces[id]![0]);
  assert.deepEqual(texts('aba'), ['\u2581', 'ab', 'a']);
  assert.deepEqual(texts('abab'), ['\u2581', 'abab']);
});

test('SentencePiece: text never spells a control or a byte token', () => {
  const tokenizer = readTokenizer(smallSentencePiece(pieces), 'm');
  for (const text of ['<s>', '</s>', '<unk>', '<0x41>']) {
    const ids = tokenizer.encode(text);
    assert.equal(
      ids.some((id) => tokenizer.isSpecial(id)),
      false,
      text,
    );
    assert.equal(tokenizer.decode(ids), text);
  }
  assert.deepEqual(tokenizer.encode('<s>', { special: true }), [1]);
});

test('SentencePiece: the space before the first word, after special tokens too, and without it', () => {
  const spaced = readTokenizer(smallSentencePiece(pieces), 'm');
  const plain = readTokenizer(smallSentencePiece(pieces, { 'tokenizer.ggml.add_space_prefix': meta.bool(false) }), 'm');
  const ids = spaced.encode('<s>a</s>a', { special: true });
  assert.deepEqual(
    ids.map((id) => pieces[id]![0]),
    ['<s>', '\u2581a', '</s>', '\u2581a'],
  );
  assert.equal(spaced.decode(ids, { special: true }), '<s>a</s>a');
  assert.deepEqual(
    plain.encode('a').map((id) => pieces[id]![0]),
    ['a'],
  );
  assert.equal(plain.decode(plain.encode(' a')), ' a');
});

test('SentencePiece: extra spaces are taken out where the file says so', () => {
  const tokenizer = readTokenizer(
    smallSentencePiece(pieces, { 'tokenizer.ggml.remove_extra_whitespaces': meta.bool(true) }),
    'm',
  );
  assert.deepEqual(tokenizer.encode('  a   a '), tokenizer.encode('a a'));
  assert.deepEqual(tokenizer.encode('   '), []);
});

test('SentencePiece without byte tokens: the unknown token, else a refusal', () => {
  const few: readonly (readonly [string, number, number])[] = [
    ['<unk>', 0, 2],
    ['\u2581', -1, 1],
    ['a', -1, 1],
  ];
  const unknown = { 'tokenizer.ggml.unknown_token_id': meta.u32(0) };
  assert.deepEqual(readTokenizer(smallSentencePiece(few, unknown), 'm').encode('a\u00e9'), [1, 2, 0]);
  assert.throws(() => readTokenizer(smallSentencePiece(few), 'm').encode('\u00e9'), Refusal);
});

test('SentencePiece merges as done by hand: always the pair with the best score, the leftmost of equals', () => {
  const random = seededRandom(5);
  for (let round = 0; round < 60; round++) {
    const scores = new Map([...'abc\u2581'].map((character) => [character, -50]));
    for (let i = 0; i < 30; i++) {
      const text = Array.from({ length: 2 + random(4) }, () => 'abc'[random(3)]).join('');
      scores.set(text, -random(10));
    }
    const tokens = Array.from(scores, ([text, score]) => [text, score, 1] as const);
    const tokenizer = readTokenizer(smallSentencePiece(tokens), 'm');
    for (let i = 0; i < 20; i++) {
      const word = Array.from({ length: 1 + random(40) }, () => 'abc'[random(3)]).join('');
      const symbols = [...`\u2581${word}`];
      for (;;) {
        let best = { score: Number.NEGATIVE_INFINITY, at: -1 };
        for (let at = 0; at + 1 < symbols.length; at++) {
          const score = scores.get(symbols[at]! + symbols[at + 1]!) ?? Number.NEGATIVE_INFINITY;
          if (score > best.score) best = { score, at };
        }
        if (best.at < 0) break;
        symbols.splice(best.at, 2, symbols[best.at]! + symbols[best.at + 1]!);
      }
      assert.deepEqual(
        tokenizer.encode(word).map((id) => tokens[id]![0]),
        symbols,
      );
    }
  }
});
