import assert from 'node:assert/strict';
import { test } from 'node:test';
import { smallBytePairs, smallSentencePiece } from '../../test/support/vocabularies.ts';
import { CorruptFileError, Refusal } from '../errors.ts';
import { meta } from '../format/gguf-writer.ts';
import type { MetadataValue } from '../format/model-file.ts';
import { readTokenizer } from './index.ts';

const control = ['<|a|>', '<|b|>', '<|im_end|>'];

function read(more: Readonly<Record<string, MetadataValue>>) {
  return readTokenizer(smallBytePairs({ merges: ['h e'], control, more }), 'model.gguf');
}

test('a vocabulary that contradicts itself is corrupt, and the key is named', () => {
  const cases: readonly (readonly [string, MetadataValue, RegExp])[] = [
    ['tokenizer.ggml.tokens', meta.array('u32', Uint32Array.of(1, 2)), /tokens is an array of u32.*strings/],
    ['tokenizer.ggml.tokens', meta.array('string', []), /tokens is empty/],
    ['tokenizer.ggml.token_type', meta.array('i32', Int32Array.of(1, 1)), /token_type has 2 values.*260/],
    ['tokenizer.ggml.token_type', meta.array('i32', new Int32Array(260).fill(9)), /token_type\[0\] is 9/],
    ['tokenizer.ggml.scores', meta.array('f32', Float32Array.of(1)), /scores has 1 values/],
    ['tokenizer.ggml.merges', meta.array('string', ['h e', 'q zz']), /merges\[1\] is 'q zz'.*no token 'zz'/],
    ['tokenizer.ggml.merges', meta.array('string', ['h q']), /merges\[0\] is 'h q'.*no token 'hq'/],
    ['tokenizer.ggml.merges', meta.array('string', ['he']), /merges\[0\] is 'he'; expected two tokens/],
    ['tokenizer.ggml.eos_token_id', meta.u32(260), /eos_token_id is 260.*260 tokens/],
    ['tokenizer.ggml.bos_token_id', { type: 'i32', value: -1 }, /bos_token_id is -1/],
    ['tokenizer.ggml.eot_token_id', meta.u32(2 ** 32 - 1), /eot_token_id is 4294967295/],
    ['tokenizer.ggml.padding_token_id', meta.string('x'), /padding_token_id is string.*whole number/],
    ['tokenizer.ggml.add_bos_token', meta.u32(1), /add_bos_token is u32; expected a bool/],
    ['tokenizer.ggml.add_bos_token', meta.bool(true), /add_bos_token is true, but .*bos_token_id is missing/],
    ['tokenizer.chat_template', meta.u32(1), /chat_template is u32; expected a string/],
    ['tokenizer.ggml.pre', meta.u32(1), /pre is u32/],
    ['tokenizer.ggml.model', meta.u32(1), /model is u32/],
  ];
  for (const [key, value, message] of cases) {
    assert.throws(
      () => read({ [key]: value }),
      (error) => {
        assert.ok(error instanceof CorruptFileError, `${key}: ${error}`);
        assert.match(error.message, message);
        assert.match(error.message, /^model\.gguf: /);
        return true;
      },
    );
  }
});

test('what is missing is named', () => {
  for (const key of ['tokenizer.ggml.model', 'tokenizer.ggml.tokens', 'tokenizer.ggml.merges']) {
    const metadata = smallBytePairs({});
    metadata.delete(key);
    assert.throws(
      () => readTokenizer(metadata, 'm'),
      (error) => error instanceof CorruptFileError && error.message.includes(key),
    );
  }
  const pieces = smallSentencePiece([['a', 0, 1]]);
  pieces.delete('tokenizer.ggml.scores');
  assert.throws(() => readTokenizer(pieces, 'm'), /tokenizer\.ggml\.scores is missing/);
  assert.throws(() => readTokenizer(smallSentencePiece([['a', Number.NaN, 1]]), 'm'), /scores\[0\] is NaN/);
});

test('unknown tokenizers and pre-tokenizers are refused by name', () => {
  for (const [key, name] of [
    ['tokenizer.ggml.model', 'runes'],
    ['tokenizer.ggml.pre', 'hyperbpe'],
  ] as const) {
    assert.throws(
      () => read({ [key]: meta.string(name) }),
      (error) => error instanceof Refusal && error.message.includes(`'${name}'`),
    );
  }
});

test('a byte-level vocabulary without a pre-tokenizer has the default one', () => {
  const metadata = smallBytePairs({});
  metadata.delete('tokenizer.ggml.pre');
  assert.equal(readTokenizer(metadata, 'm').summary().pre, 'default');
});

test('BOS is added where the file says so, else where the models of its pre-tokenizer do', () => {
  const bos = { 'tokenizer.ggml.bos_token_id': meta.u32(257) };
  assert.equal(read(bos).addBos, false);
  assert.equal(read({ ...bos, 'tokenizer.ggml.add_bos_token': meta.bool(true) }).addBos, true);
  const llama = { ...bos, 'tokenizer.ggml.pre': meta.string('llama-bpe') };
  assert.equal(read(llama).addBos, true);
  assert.equal(read({ ...llama, 'tokenizer.ggml.add_bos_token': meta.bool(false) }).addBos, false);
  assert.deepEqual(read(bos).encode('he', { addBos: true }), [257, 256]);
});

test('an answer ends at the ids that the file names and at texts known to end one', () => {
  const ends = (tokenizer: { readonly endOfGeneration: ReadonlySet<number> }) =>
    [...tokenizer.endOfGeneration].sort((a, b) => a - b);
  assert.deepEqual(ends(read({})), [259]);
  assert.deepEqual(
    ends(read({ 'tokenizer.ggml.eos_token_id': meta.u32(257), 'tokenizer.ggml.eom_token_id': meta.u32(258) })),
    [257, 258, 259],
  );
  // <|end|> closes a message, not the answer, where <|return|> does that.
  const harmony = smallBytePairs({ control: ['<|return|>', '<|call|>', '<|end|>'] });
  assert.deepEqual(ends(readTokenizer(harmony, 'm')), [256, 257]);
  assert.deepEqual(ends(readTokenizer(smallBytePairs({ control: ['<|end|>'] }), 'm')), [256]);
});

test('an end token that the file calls normal or user-defined is a control token', () => {
  const tokenizer = readTokenizer(smallBytePairs({ userDefined: ['<|im_end|>', '<tool>'] }), 'm');
  assert.equal(tokenizer.isSpecial(256), true);
  assert.equal(tokenizer.isSpecial(257), false);
  assert.equal(tokenizer.encode('<|im_end|>').includes(256), false);
  assert.deepEqual(tokenizer.encode('<tool>'), [257]);
});

test('the keys that were read, and the summary', () => {
  const tokenizer = read({
    'tokenizer.ggml.eos_token_id': meta.u32(259),
    'tokenizer.chat_template': meta.string('abc'),
  });
  assert.deepEqual([...tokenizer.consumedKeys].sort(), [
    'tokenizer.chat_template',
    'tokenizer.ggml.eos_token_id',
    'tokenizer.ggml.merges',
    'tokenizer.ggml.model',
    'tokenizer.ggml.pre',
    'tokenizer.ggml.token_type',
    'tokenizer.ggml.tokens',
  ]);
  assert.deepEqual(tokenizer.summary(), {
    model: 'gpt2',
    pre: 'gpt-2',
    tokens: 260,
    merges: 1,
    types: { normal: 257, control: 3 },
    bos: undefined,
    eos: { id: 259, text: '<|im_end|>' },
    endOfGeneration: [{ id: 259, text: '<|im_end|>' }],
    addBos: false,
    addEos: false,
    addSpacePrefix: false,
    chatTemplateLength: 3,
  });
  assert.deepEqual(tokenizer.namedTokens, { eos_token: '<|im_end|>' });
});

test('a byte without a token: the unknown token, else a refusal that names the byte', () => {
  const withoutZ = (more: Readonly<Record<string, MetadataValue>>) => {
    const metadata = smallBytePairs({ more });
    const tokens = [...(metadata.get('tokenizer.ggml.tokens')!.value as unknown as readonly string[])];
    tokens[0x7a] = 'no z';
    return metadata.set('tokenizer.ggml.tokens', meta.array('string', tokens));
  };
  const unknown = { 'tokenizer.ggml.unknown_token_id': meta.u32(0) };
  assert.deepEqual(readTokenizer(withoutZ(unknown), 'm').encode('az'), [0x61, 0]);
  const refused = (error: unknown) => error instanceof Refusal && error.message.includes('0x7a');
  assert.throws(() => readTokenizer(withoutZ({}), 'm').encode('az'), refused);
});
