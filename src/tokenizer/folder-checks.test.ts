import assert from 'node:assert/strict';
import { test } from 'node:test';
import { checkMerges, checkPatterns, repeatsRepeats } from './folder-checks.ts';

test('patterns that published tokenizers have are taken', () => {
  for (const pattern of [
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s+",
    '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*',
    '\\p{N}{1,3}(?=(\\p{N}{3})\\b)',
    '[(a+)+]+',
    '\\(a+\\)+',
  ])
    assert.equal(repeatsRepeats(pattern), false, pattern);
});

test('a repeated group that repeats or chooses is refused, wherever it stands', () => {
  for (const pattern of ['(a+)+$', '(?:a*)*', '(a|aa)+$', '((a+))*', '(a{2,})+', '(a+){1,30}', 'x(?:b(?:c|d))*'])
    assert.equal(repeatsRepeats(pattern), true, pattern);
  const step = { type: 'Split', pattern: { Regex: '(a+)+$' }, behavior: 'Isolated', invert: false };
  for (const part of ['normalizer', 'pre_tokenizer', 'decoder']) {
    const json = { [part]: { type: 'Sequence', pretokenizers: [step] } };
    assert.throws(() => checkPatterns(json, 'tokenizer.json'), { code: 'refused', message: /\(a\+\)\+\$/ });
  }
});

test('merges are two tokens that make a third', () => {
  const vocab = { a: 0, b: 1, ab: 2 };
  assert.equal(checkMerges({ vocab, merges: ['a b', ['a', 'b']] }, 'x'), 2);
  assert.equal(checkMerges({ vocab }, 'x'), 0);
  assert.equal(
    checkMerges({ vocab: { a: 0, '##b': 1, ab: 2 }, merges: ['a ##b'], continuing_subword_prefix: '##' }, 'x'),
    1,
  );
  for (const merge of [5, 'a', 'a b c', ['a'], ['a', 5], 'b a', 'a z', null])
    assert.throws(() => checkMerges({ vocab, merges: ['a b', merge] }, 'x'), {
      code: 'corrupt_file',
      message: /merges\[1\]/,
    });
  assert.throws(() => checkMerges({ vocab, merges: 'a b' }, 'x'), { code: 'corrupt_file' });
});
