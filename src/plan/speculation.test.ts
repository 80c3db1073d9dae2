/** How tokens are drafted, as people ask for it: what is understood, and what is told of the rest. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { UsageError } from '../errors.ts';
import { parseSpeculation, readSpeculation, type SpeculationOption } from './speculation.ts';

test('what is understood', () => {
  const read = (text: string) => readSpeculation(parseSpeculation(text));
  assert.equal(readSpeculation(undefined), undefined);
  assert.equal(read('off'), undefined);
  assert.deepEqual(read('mtp:1'), { source: 'mtp', drafts: 1 });
  assert.deepEqual(read('mtp:3'), { source: 'mtp', drafts: 3 });
  assert.deepEqual(read('lookup'), { source: 'lookup', drafts: 3 });
  assert.deepEqual(read('lookup:7'), { source: 'lookup', drafts: 7 });
  assert.deepEqual(read('draft:a.gguf'), { source: 'draft', drafts: 3, model: 'a.gguf' });
  assert.deepEqual(read('draft:a.gguf:5'), { source: 'draft', drafts: 5, model: 'a.gguf' });
  assert.deepEqual(read('draft:https://host:8080/a.gguf:2'), {
    source: 'draft',
    drafts: 2,
    model: 'https://host:8080/a.gguf',
  });
});

test('what is not, with what was found and what is expected', () => {
  for (const text of [
    '',
    'on',
    'mtp',
    'mtp:0',
    'mtp:4',
    'mtp:-1',
    'mtp:1.5',
    'lookup:0',
    'lookup:8',
    'draft:a:0',
    'draft:a:8',
    'draft:',
  ]) {
    assert.throws(
      () => parseSpeculation(text),
      (error: unknown) => error instanceof UsageError && /speculation: found .*expected off, mtp:N/.test(error.message),
      text,
    );
  }
  for (const option of [null, 3, true, {}, { draft: 'a', tokens: 8 }, { draft: 'a', tokens: 1.5 }, []]) {
    assert.throws(() => readSpeculation(option as unknown as SpeculationOption), UsageError, JSON.stringify(option));
  }
});
