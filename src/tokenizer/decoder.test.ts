import assert from 'node:assert/strict';
import { test } from 'node:test';
import { seededRandom, smallBytePairs, smallSentencePiece } from '../../test/support/vocabularies.ts';
import { UsageError } from '../errors.ts';
import { meta } from '../format/gguf-writer.ts';
import { readTokenizer } from './index.ts';

const bytes = readTokenizer(smallBytePairs({ control: ['<|a|>'], userDefined: ['\u00fc|'] }), 'm');
const CONTROL = 256;

/** Ids of bytes are the bytes themselves in this vocabulary. */
const idsOf = (text: string) => [...new TextEncoder().encode(text)];

test('every way of cutting a text into tokens streams to the same text, and no piece ends in half a character', () => {
  const text = 'a\u00e9\u6F22\u{1F600}\u200D\uFEFFz';
  const ids = idsOf(text);
  const decoder = bytes.stream();
  let streamed = '';
  for (const id of ids) {
    streamed += decoder.push(id);
    assert.ok(text.startsWith(streamed), JSON.stringify(streamed));
  }
  assert.equal(streamed, text);
  assert.equal(decoder.flush(), '');
});

test('streaming equals decoding, for any bytes, cut anywhere', () => {
  const random = seededRandom(11);
  const interesting = [
    0x00, 0x41, 0x7f, 0x80, 0xbf, 0xc0, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xed, 0xa0, 0xef, 0xbb, 0xf0, 0x9f, 0x98, 0xf4,
    0x90, 0xff,
  ];
  for (let round = 0; round < 3000; round++) {
    const ids = Array.from({ length: random(12) }, () =>
      random(12) === 0 ? CONTROL + random(2) : interesting[random(interesting.length)]!,
    );
    for (const special of [false, true]) {
      const decoder = bytes.stream({ special });
      const parts = ids.map((id) => decoder.push(id));
      parts.push(decoder.flush());
      assert.equal(parts.join(''), bytes.decode(ids, { special }));
      // The platform's own decoder over all the bytes at once is the truth.
      const all = ids.flatMap((id) =>
        id < CONTROL ? [id] : id === CONTROL ? (special ? idsOf('<|a|>') : []) : idsOf('\u00fc|'),
      );
      assert.equal(parts.join(''), new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(all)));
    }
  }
});

test('a character that never comes whole is U+FFFD: when that is certain, or at the end', () => {
  const decoder = bytes.stream();
  assert.equal(decoder.push(0xe6), '');
  assert.equal(decoder.push(0xbc), '');
  assert.equal(decoder.push(0x41), '\uFFFDA');
  assert.equal(decoder.push(0xf0), '');
  assert.equal(decoder.flush(), '\uFFFD');
  assert.equal(decoder.push(0x42), 'B');
});

test('control tokens are left out or shown, user-defined tokens are text', () => {
  const ids = [0x41, CONTROL, CONTROL + 1];
  assert.equal(bytes.decode(ids), 'A\u00fc|');
  assert.equal(bytes.decode(ids, { special: true }), 'A<|a|>\u00fc|');
  assert.equal(bytes.text(CONTROL), '<|a|>');
});

test('an id outside the vocabulary is a usage error', () => {
  for (const id of [-1, 258, 1.5, Number.NaN]) assert.throws(() => bytes.decode([id]), UsageError);
});

test('SentencePiece: bytes join to characters, and the space prefix is dropped unless the text goes on', () => {
  const tokens = [
    ['\u2581a', -1, 1],
    ['<0xC3>', 0, 6],
    ['<0xA9>', 0, 6],
    ['\u2581', -2, 1],
  ] as const;
  const tokenizer = readTokenizer(smallSentencePiece(tokens), 'm');
  assert.equal(tokenizer.decode([0, 1, 2, 0]), 'a\u00e9 a');
  const streamed = (continues: boolean) => {
    const decoder = tokenizer.stream({ continues });
    return [0, 1, 2, 0].map((id) => decoder.push(id));
  };
  assert.deepEqual(streamed(false), ['a', '', '\u00e9', ' a']);
  assert.deepEqual(streamed(true), [' a', '', '\u00e9', ' a']);
  const plain = readTokenizer(smallSentencePiece(tokens, { 'tokenizer.ggml.add_space_prefix': meta.bool(false) }), 'm');
  assert.equal(plain.decode([0]), ' a');
});
