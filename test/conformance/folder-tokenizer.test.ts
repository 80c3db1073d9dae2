/**
 * A tokenizer.json keeps the contract of a GGUF file's tokenizer: recorded ids, whole characters as tokens come, ids within
 * the model's vocabulary, and no text of a message that becomes a control token. Damaged and hostile files are told by name.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { CorruptFileError, Refusal, UsageError } from '../../src/errors.ts';
import type { JsonObject, JsonValue } from '../../src/format/json.ts';
import type { ModelFile } from '../../src/format/model-file.ts';
import type { ModelFolder } from '../../src/format/model-folder.ts';
import { openModelFile } from '../../src/format/open.ts';
import { readTokenizer, type Tokenizer, tokenizerOf } from '../../src/tokenizer/index.ts';
import { familyFile } from '../support/families.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { fixtureJson } from '../support/vocabularies.ts';

const json = (name: string) =>
  JSON.parse(readFileSync(new URL(`../fixtures/families/${name}`, import.meta.url), 'utf8')) as JsonObject;
const files = { tokenizer: json('tokenizer.json'), tokenizerConfig: json('tokenizer_config.json') };
const ROWS = 512;

/** The families' tokenizer, with changes to its files. */
function folderTokenizer(changes: Partial<ModelFolder> = {}, rows = ROWS): Tokenizer {
  const folder: ModelFolder = { name: 'a folder', ...files, ...changes };
  return tokenizerOf({ container: 'safetensors', name: 'a folder', folder } as ModelFile, rows);
}

const tokenizerWith = (changes: Readonly<Record<string, JsonValue>>, rows?: number) =>
  folderTokenizer({ tokenizer: { ...files.tokenizer, ...changes } }, rows);
const modelWith = (changes: Readonly<Record<string, JsonValue>>) =>
  tokenizerWith({ model: { ...(files.tokenizer.model as JsonObject), ...changes } });

const recorded = fixtureJson('pieces.json.gz') as {
  readonly texts: readonly string[];
  readonly ids: Readonly<Record<string, readonly (readonly number[])[]>>;
};

test('recorded ids of random texts, back to the same text, and the same as the GGUF file of the model', async () => {
  const file = await openModelFile(await nodeModelSource(familyFile('qwen3', 'model.gguf')));
  await file.close();
  const gguf = readTokenizer(file.metadata, file.name);
  const own = folderTokenizer();
  assert.equal(recorded.texts.length, 400);
  recorded.texts.forEach((text, i) => {
    const ids = own.encode(text);
    assert.deepEqual(ids, recorded.ids.families?.[i], JSON.stringify(text));
    assert.equal(own.decode(ids), text.toWellFormed());
  });
  for (const fact of ['bos', 'eos', 'addBos', 'addEos', 'vocabularySize', 'controlTexts', 'endOfGeneration'] as const) {
    assert.deepEqual(own[fact], gguf[fact], fact);
  }
  for (let id = 0; id < ROWS; id++) assert.equal(own.text(id), gguf.text(id));
});

test('tokens one by one give the text of all, and never half a character', () => {
  const tokenizer = folderTokenizer();
  for (const text of recorded.texts.slice(0, 100)) {
    const decoder = tokenizer.stream();
    let streamed = '';
    for (const id of tokenizer.encode(text)) {
      const part = decoder.push(id);
      assert.ok(!part.includes('\uFFFD') || text.includes('\uFFFD'));
      streamed += part;
    }
    assert.equal(streamed + decoder.flush(), text.toWellFormed());
  }
});

test('control tokens come only from where they are asked for, never from the contents of messages', () => {
  const tokenizer = folderTokenizer();
  const text = '<|im_start|>user\n<|im_end|><|im_end|>';
  const control = (ids: readonly number[]) => ids.filter((id) => tokenizer.isSpecial(id));
  assert.deepEqual(control(tokenizer.encode(text)), []);
  assert.equal(tokenizer.decode(tokenizer.encode(text)), text);
  assert.deepEqual(control(tokenizer.encode(text, { special: true })), [510, 511, 511]);
  // The first <|im_end|> came out of a message.
  const start = text.indexOf('<|im_end|>');
  const templated = tokenizer.encodeTemplated({ text, content: [start, start + 10] });
  assert.deepEqual(control(templated), [510, 511]);
  // Not by the vocabulary either, where words are looked up whole.
  const whole = modelWith({ ignore_merges: true, vocab: { ...vocab(), '<|im_end|>': 511 } });
  const splitting = {
    ...files.tokenizer,
    pre_tokenizer: null,
    model: { ...(files.tokenizer.model as JsonObject), ignore_merges: true },
  };
  for (const each of [whole, folderTokenizer({ tokenizer: splitting })]) {
    assert.deepEqual(
      each.encode('<|im_end|>').filter((id) => each.isSpecial(id)),
      [],
    );
  }
});

function vocab(): JsonObject {
  return (files.tokenizer.model as JsonObject).vocab as JsonObject;
}

test('ids end where the embedding does: padding is no text, and beyond it is nothing', () => {
  const padded = folderTokenizer({}, 600);
  assert.equal(padded.vocabularySize, 600);
  assert.equal(padded.decode([599]), '');
  assert.equal(padded.isSpecial(599), false);
  assert.throws(() => padded.decode([600]), UsageError);
  assert.throws(() => folderTokenizer({}, 511), corrupt(/"<\|im_end\|>" has the id 511; expected one from 0 to 510/));
});

test('what ends an answer is said by generation_config.json and config.json too', () => {
  assert.deepEqual([...folderTokenizer().endOfGeneration].sort(), [509, 511]);
  const more = folderTokenizer({ generationConfig: { eos_token_id: [7, 8] }, config: { eos_token_id: 9 } });
  assert.deepEqual(
    [...more.endOfGeneration].sort((a, b) => a - b),
    [7, 8, 9, 509, 511],
  );
  for (const eos_token_id of [[7, 512], -1, 'x', 1.5, [null]]) {
    assert.throws(() => folderTokenizer({ generationConfig: { eos_token_id } }), corrupt(/eos_token_id is/));
  }
});

test('BOS is added as the post-processor or tokenizer_config.json says', () => {
  const single = (tokens: readonly string[]): JsonValue => ({
    type: 'TemplateProcessing',
    single: tokens.map(
      (id): JsonValue => (id === 'A' ? { Sequence: { id, type_id: 0 } } : { SpecialToken: { id, type_id: 0 } }),
    ),
    pair: [],
    special_tokens: Object.fromEntries(tokens.map((id) => [id, { id, ids: [509], tokens: [id] }])),
  });
  assert.equal(folderTokenizer().addBos, false);
  const added = tokenizerWith({ post_processor: single(['<|endoftext|>', 'A']) });
  assert.deepEqual([added.addBos, added.addEos], [true, false]);
  assert.equal(tokenizerWith({ post_processor: single(['A', '<|im_end|>']) }).addEos, true);
  assert.equal(added.encodeTemplated({ text: 'a', content: [] })[0], 509);
  const told = { tokenizerConfig: { ...files.tokenizerConfig, add_bos_token: true } };
  assert.equal(folderTokenizer(told).addBos, true);
  assert.throws(
    () => tokenizerWith({ post_processor: single(['<|im_start|>', 'A']) }),
    refused(/puts tokens around a text/),
  );
});

test('the template is a file of its own, or the default of tokenizer_config.json', () => {
  const chat_template = [
    { name: 'tool_use', template: 'no' },
    { name: 'default', template: 'yes' },
  ];
  assert.match(folderTokenizer().chatTemplate ?? '', /im_start/);
  assert.equal(folderTokenizer({ chatTemplate: 'own' }).chatTemplate, 'own');
  assert.equal(folderTokenizer({ tokenizerConfig: { chat_template } }).chatTemplate, 'yes');
  assert.throws(() => folderTokenizer({ tokenizerConfig: { chat_template: 7 } }), corrupt(/chat_template .* is 7/));
});

test('pieces with a mark for spaces: the first stretch alone gets a space, bytes stand for what has no piece', () => {
  const pieces = ['<unk>', '\u2581', 'a', 'b', '\u2581a', 'ab', '<0x0A>', '<0xC3>', '<0xA9>', '<s>'];
  const tokenizer: JsonObject = {
    added_tokens: [
      { id: 0, content: '<unk>', special: true },
      { id: 9, content: '<s>', special: true },
    ],
    normalizer: null,
    pre_tokenizer: { type: 'Metaspace', replacement: '\u2581', prepend_scheme: 'first', split: false },
    post_processor: null,
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '\u2581' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: {
      type: 'BPE',
      unk_token: '<unk>',
      byte_fallback: true,
      vocab: Object.fromEntries(pieces.map((piece, id) => [piece, id])),
      merges: ['\u2581 a', 'a b'],
    },
  };
  const own = folderTokenizer({ tokenizer, tokenizerConfig: { bos_token: '<s>', unk_token: '<unk>' } }, 10);
  assert.deepEqual(own.encode('a b'), [4, 1, 3]);
  assert.equal(own.decode([4, 1, 3]), 'a b');
  assert.deepEqual(own.encode('<s>ab', { special: true }), [9, 5]);
  assert.deepEqual(own.encode('a<s>ab', { special: true }), [4, 9, 5]);
  assert.deepEqual(own.encode('\u00e9'), [1, 7, 8]);
  assert.equal(own.decode([1, 7, 8]), '\u00e9');
  assert.equal(own.stream().push(7), '');
});

test('a character that has no token is refused, not left out', () => {
  const { '\u00c3': _, ...rest } = vocab();
  const without = modelWith({ vocab: rest, merges: [] });
  assert.throws(() => without.encode('\u00e9'), refused(/no token for the byte 0xc3/));
  assert.ok(without.encode('e').length === 1);
});

test('long words take no long time', () => {
  const tokenizer = folderTokenizer();
  for (const word of ['a'.repeat(50_000), ' '.repeat(50_000), 'ab1 '.repeat(12_000)]) {
    assert.equal(tokenizer.decode(tokenizer.encode(word)), word);
  }
});

const corrupt = (mention: RegExp) => (error: unknown) =>
  error instanceof CorruptFileError && mention.test(error.message);
const refused = (mention: RegExp) => (error: unknown) => error instanceof Refusal && mention.test(error.message);

test('damaged and unsupported files are told by name', () => {
  const added = files.tokenizer.added_tokens as readonly JsonObject[];
  const withToken = (token: JsonObject) => () => tokenizerWith({ added_tokens: [...added, token] });
  assert.throws(() => folderTokenizer({ tokenizer: undefined }), refused(/no tokenizer\.json/));
  assert.throws(() => tokenizerWith({ model: null }), refused(/tokenizer model missing/));
  assert.throws(() => modelWith({ type: 'Unigram' }), refused(/tokenizer model "Unigram" is not supported/));
  assert.throws(() => modelWith({ vocab: [] }), corrupt(/model\.vocab is \[\]/));
  assert.throws(() => modelWith({ vocab: { a: 1e9 } }), corrupt(/"a" has the id 1000000000/));
  assert.throws(() => modelWith({ vocab: { a: 'x' } }), corrupt(/"a" has the id "x"/));
  assert.throws(() => modelWith({ vocab: { a: 1, b: 1 } }), corrupt(/the id 1 is of "a" and of "b"/));
  assert.throws(() => modelWith({ merges: 7 }), corrupt(/model.merges is 7; expected a list of merges/));
  assert.throws(() => modelWith({ merges: ['no-such no-token'] }), corrupt(/merges\[0\] is "no-such no-token"/));
  assert.throws(
    () => tokenizerWith({ decoder: { type: 'WordPiece' } }),
    refused(/decoder .*WordPiece.* is not supported/),
  );
  assert.throws(
    () => tokenizerWith({ pre_tokenizer: { type: 'Odd' } }),
    corrupt(/cannot be read \(Unknown PreTokenizer type: Odd\)/),
  );
  assert.throws(() => tokenizerWith({ added_tokens: null }), corrupt(/added_tokens is null/));
  assert.throws(withToken({ id: 'x', content: 'y' }), corrupt(/added_tokens\[3\]/));
  assert.throws(withToken({ id: 400, content: 'y', lstrip: true }), refused(/"y" has lstrip/));
  const tokenizerConfig = { ...files.tokenizerConfig, eos_token: 'nowhere' };
  assert.throws(() => folderTokenizer({ tokenizerConfig }), corrupt(/eos_token .* is "nowhere", which is no token/));
});
