/** Prompts out of files that are not just files: pipes, devices, nothing. */

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { closeSync, openSync, writeSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { SourceError, UsageError } from '../errors.ts';
import { readPromptFile } from './prompt.ts';

let folder: string;
let pipe: string;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'conclave-'));
  pipe = join(folder, 'pipe');
  execFileSync('mkfifo', [pipe]);
});
after(() => rm(folder, { recursive: true }));

function usage(pattern: RegExp) {
  return (error: unknown) => error instanceof UsageError && pattern.test(error.message);
}

test('a file, whatever its length, without the last line end', async () => {
  const path = join(folder, 'long.txt');
  const text = 'What is ice? Würde.\n'.repeat(20_000);
  await writeFile(path, text);
  assert.equal(await readPromptFile(path), text.slice(0, -1));
});

test('a pipe is read to its end, however slowly it is written', async () => {
  // Both ends, so that opening waits for nobody.
  const writer = openSync(pipe, 'r+');
  const prompt = readPromptFile(pipe);
  for (const piece of ['What is ', 'ice?', '\n']) {
    writeSync(writer, piece);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
  closeSync(writer);
  assert.equal(await prompt, 'What is ice?');
});

test('what has no end, no byte or no text is told', async () => {
  await assert.rejects(readPromptFile('/dev/zero'), usage(/\/dev\/zero has \d+ bytes or more; at most 16777216/));
  await assert.rejects(readPromptFile('/dev/null'), usage(/\/dev\/null is empty/));
  await assert.rejects(readPromptFile(pipe), usage(/pipe is empty/), 'nobody writes to it');
  const path = join(folder, 'latin1.txt');
  await writeFile(path, Uint8Array.of(0xe9));
  await assert.rejects(readPromptFile(path), usage(/not UTF-8/));
  await assert.rejects(
    readPromptFile(folder),
    (error) => error instanceof SourceError && /it is a directory/.test(error.message),
  );
});

test('a command that waits for a pipe is ended by Ctrl-C', async () => {
  const writer = openSync(pipe, 'r+');
  const main = fileURLToPath(new URL('./main.ts', import.meta.url));
  const child = spawn(process.execPath, [main, 'run', '-f', pipe], { stdio: 'ignore' });
  const ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve(code ?? signal)));
  // A signal before the handler stands ends the process as a signal does.
  await new Promise((resolve) => setTimeout(resolve, 500));
  child.kill('SIGINT');
  assert.ok([130, 'SIGINT'].includes((await ended) as number | string));
  closeSync(writer);
});
