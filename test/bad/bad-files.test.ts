/**
 * Broken and hostile files: each gives the error that `cases.json` names, and its message holds the words listed there,
 * within a second and without taking memory for what the file merely claims.
 */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ConclaveError, CorruptFileError, Refusal } from '../../src/errors.ts';
import { openCase } from './open-case.ts';

interface Case {
  /** `corrupt`: damaged or contradicting itself; `refusal`: sound, not supported; `ok`: whole. */
  readonly kind: 'corrupt' | 'refusal' | 'run' | 'ok';
  readonly about: string;
  /** What the message must hold, all of them; `a|b`: either. */
  readonly mentions: readonly string[];
}

const folder = fileURLToPath(new URL('../fixtures/bad/', import.meta.url));
const cases: Readonly<Record<string, Case>> = JSON.parse(readFileSync(`${folder}cases.json`, 'utf8'));
const MAX_MS = 1000;
const MAX_BYTES = 200e6;

async function errorOf(path: string): Promise<unknown> {
  try {
    await openCase(path);
  } catch (error) {
    return error;
  }
  return undefined;
}

/** A machine may be busy with other things for a second, but a file that takes long takes long each time. */
async function timed(path: string): Promise<{ readonly error: unknown; readonly elapsedMs: number }> {
  let elapsedMs = Number.POSITIVE_INFINITY;
  let error: unknown;
  for (let attempt = 0; attempt < 3 && elapsedMs >= MAX_MS; attempt++) {
    const start = performance.now();
    error = await errorOf(path);
    elapsedMs = performance.now() - start;
  }
  return { error, elapsedMs };
}

function check(error: unknown, { kind, mentions }: Case, path: string): void {
  if (kind === 'ok') {
    assert.equal(error, undefined);
    return;
  }
  assert.ok(
    error instanceof ConclaveError,
    `expected an error of Conclave's, got ${(error as Error | undefined)?.stack}`,
  );
  const expected = { corrupt: CorruptFileError, refusal: Refusal, run: ConclaveError }[kind];
  assert.ok(error instanceof expected, `expected ${expected.name}, got ${error.name}: ${error.message}`);
  for (const mention of mentions) {
    assert.ok(
      mention.split('|').some((words) => error.message.includes(words)),
      `expected ${JSON.stringify(mention)} in: ${error.message}`,
    );
  }
  assert.ok(
    error.message.includes(basename(path).replace(/-\d{5}-of-\d{5}\.gguf$/, '')),
    `no file in: ${error.message}`,
  );
}

describe('broken files', () => {
  let baseline = 0;

  before(async () => {
    // What the program itself takes does not count: a whole file first.
    await openCase(`${folder}base.gguf`);
    baseline = process.memoryUsage.rss();
  });

  for (const [name, item] of Object.entries(cases)) {
    if (item.kind === 'run') continue;
    test(`${name}: ${item.about}`, async () => {
      const { error, elapsedMs } = await timed(folder + name);
      check(error, item, name);
      assert.ok(elapsedMs < MAX_MS, `took ${elapsedMs} ms`);
      // The peak of the whole run so far, so that what a case took and gave back is seen too.
      const grown = process.resourceUsage().maxRSS * 1024 - baseline;
      assert.ok(grown < MAX_BYTES, `memory grew by ${grown} bytes`);
    });
  }

  test('a whole split set opens from each of its shards', async () => {
    for (const number of [1, 2, 3]) {
      assert.equal(await errorOf(`${folder}split-ok-0000${number}-of-00003.gguf`), undefined);
    }
  });

  test('every file of the folder is a case, a shard of one, or the whole one that they are made from', () => {
    const helpers = new Set(['cases.json', 'base.gguf', 'outside.safetensors']);
    const shards = Object.keys(cases)
      .filter((name) => name.includes('-of-'))
      .map((name) => name.replace('-00001-of-', ''));
    for (const name of readdirSync(folder)) {
      const first = name.replace(/-\d{5}-of-/, '');
      assert.ok(name in cases || helpers.has(name) || shards.includes(first), `${name} is no case`);
    }
    assert.ok(Object.keys(cases).length >= 91);
  });
});
