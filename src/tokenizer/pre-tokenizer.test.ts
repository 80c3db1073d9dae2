import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Refusal } from '../errors.ts';
import { preTokenizer, preTokenizerNames, splitWords } from './pre-tokenizer.ts';

const cut = (name: string, text: string) => splitWords(text, preTokenizer(name, 'm'));

test('the pieces are the text, whatever it is', () => {
  const texts = [
    '',
    ' ',
    'a',
    '\n',
    '\u0000',
    'Hello,  world!\n\n 12345 it\u2019s',
    "I'LL \u6F22\u5B57 \u0915\u0947\u0301 \u{1F600}\u200D",
    '\uFEFF\u0085 x',
    '!?'.repeat(50),
  ];
  for (const name of preTokenizerNames) {
    for (const text of texts) assert.equal(cut(name, text).join(''), text, name);
    assert.deepEqual(cut(name, ''), [], name);
  }
});

test('every name is there once, and an unknown one is refused with what is known', () => {
  assert.equal(new Set(preTokenizerNames).size, preTokenizerNames.length);
  assert.throws(
    () => preTokenizer('hyperbpe', 'model.gguf'),
    (error) => {
      assert.ok(error instanceof Refusal);
      assert.match(error.message, /^model\.gguf: .*'hyperbpe'.*tokenizer\.ggml\.pre.*llama-bpe/);
      return true;
    },
  );
});

test('digits: one by one, in threes from the left, in threes from the right, or all together', () => {
  assert.deepEqual(cut('qwen2', '1234567'), [...'1234567']);
  assert.deepEqual(cut('smollm', 'a1234'), ['a', ...'1234']);
  assert.deepEqual(cut('llama-bpe', '1234567'), ['123', '456', '7']);
  assert.deepEqual(cut('afmoe', '1234567'), ['1', '234', '567']);
  assert.deepEqual(cut('cohere2moe', '12345 678'), ['12', '345', ' ', '678']);
  assert.deepEqual(cut('gpt-2', ' 1234567'), [' 1234567']);
  assert.deepEqual(cut('viking', '123'), ['1', '2', '3']);
});

test('deepseek-llm: line ends alone, spaces with the letters or punctuation that follow, ideographs together', () => {
  assert.deepEqual(cut('deepseek-llm', 'one\r\n two, \u6F22\u5B57 12'), [
    'one',
    '\r',
    '\n',
    ' two',
    ',',
    ' ',
    '\u6F22\u5B57',
    ' ',
    '12',
  ]);
  assert.deepEqual(cut('deepseek-llm', 'end  '), ['end', '  ']);
});

test('words break where lower case turns to upper case only for o200k and its kin', () => {
  assert.deepEqual(cut('gpt-4o', "camelCase WORDS we'll"), ['camel', 'Case', ' WORDS', " we'll"]);
  assert.deepEqual(cut('tekken', "camelCase we'll"), ['camel', 'Case', ' we', "'ll"]);
  assert.deepEqual(cut('qwen2', "camelCase we'll"), ['camelCase', ' we', "'ll"]);
});

test('what counts as space is the Unicode property, not what JavaScript calls space', () => {
  assert.deepEqual(cut('qwen2', 'a\u0085b'), ['a', '\u0085b']);
  assert.deepEqual(cut('gpt-2', 'a\u0085b'), ['a', '\u0085', 'b']);
  assert.deepEqual(cut('gpt-2', 'a\uFEFFb'), ['a', '\uFEFF', 'b']);
  assert.deepEqual(cut('gpt-2', 'a \uFEFFb'), ['a', ' \uFEFF', 'b']);
});
