import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CorruptFileError } from '../errors.ts';
import type { MetadataType, MetadataValue } from '../format/model-file.ts';
import { folderSampling, readFileSampling } from './file-defaults.ts';

const metadata = (entries: Record<string, [MetadataType, number | string | boolean]>) =>
  new Map<string, MetadataValue>(
    Object.entries(entries).map(([key, [type, value]]) => [`general.sampling.${key}`, { type, value }]),
  );

test('the keys of a file become defaults', () => {
  const { defaults, ignored } = readFileSampling(
    metadata({
      temp: ['f32', 0.6],
      top_k: ['i32', 20],
      top_p: ['f32', 0.9],
      min_p: ['f32', 0.1],
      penalty_last_n: ['i32', 128],
      penalty_repeat: ['f32', 1.05],
    }),
    'm.gguf',
  );
  assert.deepEqual(defaults, {
    temperature: 0.6,
    topK: 20,
    topP: 0.9,
    minP: 0.1,
    penaltyWindow: 128,
    repeatPenalty: 1.05,
  });
  assert.deepEqual(ignored, []);
});

test('"off" as writers write it is off', () => {
  assert.deepEqual(readFileSampling(metadata({ temp: ['f32', -1], top_k: ['i32', -1] }), 'm').defaults, {
    temperature: 0,
    topK: 0,
  });
});

test('what is not followed is named', () => {
  const { defaults, ignored } = readFileSampling(metadata({ mirostat: ['i32', 2], sequence: ['string', 'kp'] }), 'm');
  assert.deepEqual(defaults, {});
  assert.deepEqual(
    ignored.map(({ name }) => name),
    ['general.sampling.mirostat', 'general.sampling.sequence'],
  );
});

test('a value that cannot be meant is a damaged file, named by key', () => {
  for (const entry of [
    { temp: ['f32', NaN] },
    { top_p: ['f32', 3] },
    { top_k: ['string', 'x'] },
    { min_p: ['bool', true] },
    { penalty_repeat: ['f32', 0] },
  ] as Record<string, [MetadataType, number | string | boolean]>[]) {
    const [key] = Object.keys(entry);
    assert.throws(
      () => readFileSampling(metadata(entry), 'm.gguf'),
      (error) => error instanceof CorruptFileError && error.message.includes(`m.gguf: key general.sampling.${key}`),
    );
  }
});

test('a folder is followed where it says that it samples, and what is not followed is named', () => {
  const said = { temperature: 0.6, top_k: 20, top_p: 0.9, repetition_penalty: 1.05, num_beams: 1, eos_token_id: 7 };
  const { defaults, ignored } = folderSampling({ do_sample: true, ...said }, 'a folder');
  assert.deepEqual(defaults, { temperature: 0.6, topK: 20, topP: 0.9, repeatPenalty: 1.05 });
  assert.deepEqual(
    ignored.map(({ name }) => name),
    ['num_beams'],
  );
  const greedy = folderSampling(said, 'a folder');
  assert.deepEqual(greedy.defaults, {});
  assert.equal(greedy.ignored.length, 5);
  assert.throws(
    () => folderSampling({ do_sample: true, top_p: 2 }, 'a folder'),
    (error) =>
      error instanceof CorruptFileError && /a folder: top_p of generation_config\.json: found 2/.test(error.message),
  );
});
