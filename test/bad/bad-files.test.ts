/**
 * Broken and hostile files: each gives the error that `cases.json` names, and its message holds the words listed there,
 * within a second and without taking memory for what the file merely claims.
 */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ConclaveError, CorruptFileError, NonFiniteError, Refusal, TemplateError } from '../../src/index.ts';
import { openCase, useCase } from './open-case.ts';

interface Case {
  /**
   * `corrupt`: damaged or contradicting itself; `refusal`: sound, not supported; `run`: loads, and the fault shows when
   * it is used; `ok`: whole.
   */
  readonly kind: 'corrupt' | 'refusal' | 'run' | 'ok';
  readonly about: string;
  /** What the message must hold, all of them; `a|b`: either. */
  readonly mentions: readonly string[];
}

/** What came of a file: the error of loading it, else of using it, and the tokens that came before. */
interface Outcome {
  readonly loadError?: unknown;
  readonly useError?: unknown;
  readonly tokens: readonly number[];
  /** Of the slower of the two steps. */
  readonly elapsedMs: number;
}

const folder = fileURLToPath(new URL('../fixtures/bad/', import.meta.url));
const cases: Readonly<Record<string, Case>> = JSON.parse(readFileSync(`${folder}cases.json`, 'utf8'));
const MAX_MS = 1000;
const MAX_BYTES = 200e6;

async function outcome(path: string): Promise<Outcome> {
  const start = performance.now();
  let model: Awaited<ReturnType<typeof openCase>>;
  try {
    model = await openCase(path);
  } catch (loadError) {
    return { loadError, tokens: [], elapsedMs: performance.now() - start };
  }
  try {
    const loaded = performance.now();
    const { tokens, error: useError } = await useCase(model);
    return { useError, tokens, elapsedMs: Math.max(loaded - start, performance.now() - loaded) };
  } finally {
    await model.dispose();
  }
}

/** A machine may be busy with other things for a second, but a file that takes long takes long each time. */
async function quickest(path: string): Promise<Outcome> {
  let result = await outcome(path);
  for (let again = 0; again < 4 && result.elapsedMs >= MAX_MS; again++) {
    result = await outcome(path);
  }
  return result;
}

function check({ loadError, useError, tokens }: Outcome, { kind, mentions }: Case, name: string): void {
  if (kind === 'ok') {
    assert.equal(loadError, undefined);
    assert.equal(useError, undefined);
    assert.ok(tokens.length > 0);
    return;
  }
  const [expected, code] = {
    corrupt: [CorruptFileError, 'corrupt_file'] as const,
    refusal: [Refusal, 'refused'] as const,
    run: name.startsWith('template-')
      ? ([TemplateError, 'template'] as const)
      : ([NonFiniteError, 'non_finite'] as const),
  }[kind];
  if (kind === 'run') assert.equal(loadError, undefined);
  const error = kind === 'run' ? useError : loadError;
  assert.ok(
    error instanceof ConclaveError,
    `expected an error of Conclave's, got ${(error as Error | undefined)?.stack}`,
  );
  assert.ok(error instanceof expected, `expected ${expected.name}, got ${error.name}: ${error.message}`);
  assert.equal(error.code, code);
  for (const mention of mentions) {
    assert.ok(
      mention.split('|').some((words) => error.message.includes(words)),
      `expected ${JSON.stringify(mention)} in: ${error.message}`,
    );
  }
  // Not a token that a NaN or a half-rendered prompt made.
  assert.deepEqual(tokens, []);
  // A value that is not finite is placed by step and layer; everything else by file.
  if (expected !== NonFiniteError) {
    const file = basename(name).replace(/-\d{5}-of-\d{5}\.gguf$/, '');
    assert.ok(error.message.includes(file), `expected the file's name in: ${error.message}`);
  }
}

describe('broken files', () => {
  let baseline = 0;

  before(async () => {
    // What the program itself takes does not count: a whole file first.
    const { loadError, useError } = await outcome(`${folder}base.gguf`);
    assert.equal(loadError ?? useError, undefined);
    baseline = process.memoryUsage.rss();
  });

  for (const [name, item] of Object.entries(cases)) {
    test(`${name}: ${item.about}`, async () => {
      const result = await quickest(folder + name);
      check(result, item, name);
      assert.ok(result.elapsedMs < MAX_MS, `took ${result.elapsedMs} ms`);
      // The peak of the whole run so far, so that what a case took and gave back is seen too.
      const grown = process.resourceUsage().maxRSS * 1024 - baseline;
      assert.ok(grown < MAX_BYTES, `memory grew by ${grown} bytes`);
    });
  }

  test('a whole split set answers the same from each of its shards', async () => {
    const answers = await Promise.all(
      [1, 2, 3].map((number) => outcome(`${folder}split-ok-0000${number}-of-00003.gguf`)),
    );
    for (const { loadError, useError, tokens } of answers) {
      assert.equal(loadError ?? useError, undefined);
      assert.deepEqual(tokens, answers[0].tokens);
    }
  });

  test('every file of the folder is a case, a shard of one, or what they are made from', () => {
    const helpers = new Set(['cases.json', 'base.gguf', 'outside.safetensors']);
    const shards = Object.keys(cases).filter((name) => name.includes('-of-'));
    const sets = new Set(shards.map((name) => name.replace(/-\d{5}-of-.*/, '')));
    for (const name of readdirSync(folder)) {
      const known = name in cases || helpers.has(name) || sets.has(name.replace(/-\d{5}-of-.*/, ''));
      assert.ok(known, `${name} is no case`);
    }
    assert.equal(Object.keys(cases).length, 91);
  });
});
