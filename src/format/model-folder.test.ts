import assert from 'node:assert/strict';
import { test } from 'node:test';
import { memoryFolder } from '../../test/support/memory-source.ts';
import { CorruptFileError, SourceError } from '../errors.ts';
import { modelInFolder, readModelFolder } from './model-folder.ts';
import type { SourceFolder } from './source.ts';

const encoder = new TextEncoder();

function folderOf(files: Readonly<Record<string, string | Uint8Array>>): SourceFolder {
  const bytes = Object.entries(files).map(([name, text]) => [
    name,
    typeof text === 'string' ? encoder.encode(text) : text,
  ]);
  return memoryFolder({ ...Object.fromEntries(bytes), lone: new Uint8Array() }).source('lone').folder as SourceFolder;
}

test('what is there is read, what is not is absent', async () => {
  const folder = await readModelFolder(
    folderOf({ 'config.json': '{"model_type":"x"}', 'chat_template.jinja': '{{ messages }}', 'other.json': '{' }),
  );
  assert.deepEqual(folder.config, { model_type: 'x' });
  assert.equal(folder.chatTemplate, '{{ messages }}');
  assert.deepEqual(
    [folder.tokenizer, folder.tokenizerConfig, folder.generationConfig, folder.quantConfig],
    [undefined, undefined, undefined, undefined],
  );
});

test('a file that is damaged is told by its name', async () => {
  const cases: readonly (readonly [file: string, text: string | Uint8Array, mention: RegExp])[] = [
    ['config.json', '', /config\.json: it is not JSON/],
    ['config.json', '{"a":1', /config\.json: it is not JSON/],
    ['config.json', '[1]', /config\.json: JSON, but not an object/],
    ['config.json', '{"a":1,"b":2,"a":3}', /config\.json: the name "a" is there twice/],
    ['config.json', Uint8Array.of(0x7b, 0xff, 0x7d), /config\.json: it is not UTF-8/],
    ['config.json', `{"a":"${'x'.repeat(4 * 2 ** 20)}"}`, /config\.json: it has \d+ bytes; expected at most 4194304/],
    ['tokenizer.json', 'null', /tokenizer\.json: JSON, but not an object/],
    ['generation_config.json', '{', /generation_config\.json: it is not JSON/],
    ['chat_template.jinja', Uint8Array.of(0xff), /chat_template\.jinja: it is not UTF-8/],
  ];
  for (const [file, text, mention] of cases) {
    await assert.rejects(
      readModelFolder(folderOf({ [file]: text })),
      (error) => error instanceof CorruptFileError && mention.test(error.message),
      `${mention}`,
    );
  }
});

test('of a folder the index is the model, else its one file of tensors', async () => {
  const one = { 'model.safetensors': 'x' };
  assert.equal((await modelInFolder(folderOf(one))).fileName, 'model.safetensors');
  const index = 'model.safetensors.index.json';
  assert.equal((await modelInFolder(folderOf({ ...one, [index]: '{}' }))).fileName, index);
  await assert.rejects(
    modelInFolder(folderOf({ 'a.gguf': 'x' })),
    (error) => error instanceof SourceError && /is a directory without model\.safetensors/.test(error.message),
  );
});
