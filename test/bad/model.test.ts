/**
 * Law 6 on broken and hostile files: what contradicts itself or is not understood is named before anything is computed,
 * and weights that are not numbers are named when they are.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ConclaveError, NonFiniteError } from '../../src/errors.ts';
import { openGguf } from '../../src/format/gguf.ts';
import { readModel } from '../../src/model/read-model.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { runRows, withReference } from '../support/reference.ts';

interface Case {
  readonly kind: 'corrupt' | 'refusal' | 'run' | 'ok';
  readonly about: string;
  readonly mentions: readonly string[];
}

const folder = new URL('../fixtures/bad/', import.meta.url);
const cases = JSON.parse(readFileSync(new URL('cases.json', folder), 'utf8')) as Record<string, Case>;
const codes = { corrupt: 'corrupt_file', refusal: 'refused' };

/** The cases whose fault lies in what the model is, not in the container or the tokenizer. */
const files = [
  'arch-missing',
  'arch-number',
  'arch-unknown',
  'block_count-2147483648',
  'block_count-0',
  'block_count-3',
  'attention-head_count-0',
  'attention-head_count-5',
  'attention-head_count_kv-3',
  'embedding_length-31',
  'rope-dimension_count-9',
  'rope-scaling-unknown',
  'eps-nan',
  'unknown-arch-key',
  'unknown-tensor',
  'tensor-missing',
  'tensor-shape',
  'experts-none',
  'experts-used-9',
  'experts-ok',
  'tokens-short',
  'split-ok-00001-of-00003',
].map((name) => `${name}.gguf`);

function pathOf(file: string): string {
  return fileURLToPath(new URL(file, folder));
}

function checkMentions(message: string, { mentions }: Case): void {
  for (const mention of mentions) {
    assert.ok(
      mention.split('|').some((word) => message.includes(word)),
      `${message} does not mention ${mention}`,
    );
  }
}

async function read(file: string): Promise<void> {
  const model = await openGguf(await nodeModelSource(pathOf(file)));
  try {
    readModel(model);
  } finally {
    await model.close();
  }
}

for (const file of files) {
  const known = cases[file];
  test(`${file}: ${known.about}`, async () => {
    if (known.kind === 'ok') return read(file);
    assert.ok(known.kind !== 'run');
    const code = codes[known.kind];
    await assert.rejects(read(file), (error) => {
      assert.ok(error instanceof ConclaveError);
      assert.equal(error.code, code);
      assert.ok(error.message.includes(file), `${error.message} does not name the file`);
      checkMentions(error.message, known);
      return true;
    });
  });
}

test('weights-nan.gguf: the error names layer, operation, row and position', () =>
  withReference(pathOf('weights-nan.gguf'), async (model) => {
    await assert.rejects(runRows(model, [1, 2, 3], 0, 'prompt'), (error) => {
      assert.ok(error instanceof NonFiniteError);
      checkMentions(error.message, cases['weights-nan.gguf']);
      assert.equal(error.data.layer, 1);
      assert.equal(error.data.operation, 'linear');
      assert.match(error.message, /layer 1 \(blk\.1\).*prompt row 0 at position 0/);
      return true;
    });
  }));
