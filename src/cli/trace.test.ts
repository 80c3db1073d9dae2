/** `conclave trace` against a library made for the test: what is run, and what comes to stand in the folder. */

import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { type Asked, fakeLibrary, world } from '../../test/support/cli-world.ts';
import { Refusal } from '../errors.ts';
import { main } from './commands.ts';
import { openTrace } from './trace-input.ts';

const root = mkdtempSync(join(tmpdir(), 'conclave-trace-'));
after(() => rmSync(root, { recursive: true }));

/** Rows of two layers, one expert of four each. */
const routing = [0, 3, 1, 2, 2, 2];

test('each prompt of a file is run in a session of its own, and its rows stand in the trace one after the other', async () => {
  const prompts = join(root, 'prompts.txt');
  writeFileSync(prompts, 'Hello\r\n\n  \nWhat is a glacier?\n');
  const path = join(root, 'two');
  const { library, asked } = fakeLibrary(() => ['ice'], { routing });
  const { context, out, err } = world(library);
  assert.equal(await main(['trace', '-f', prompts, '--system', 'Be brief', '-n', '3', '-o', path], context), 0);
  const [{ prompts: run, sessions, load, disposed }] = asked as [Asked];
  assert.deepEqual(
    run.map(({ prompt }) => prompt),
    ['Hello', 'What is a glacier?'].map((content) => [
      { role: 'system', content: 'Be brief' },
      { role: 'user', content },
    ]),
  );
  assert.deepEqual([sessions, disposed, load.recordRouting], [2, 1, true]);
  assert.equal(run[0]?.options.maxTokens, 3);
  assert.equal(out(), `${path}: 6 tokens of 2 prompts, 2 layers, 1 of 4 experts a layer\n`);
  assert.match(err(), /^prompt 1 of 2: 7 tokens, answer of 1 token\nprompt 2 of 2: /m);
  const trace = await openTrace(path);
  assert.deepEqual(trace.shape, { layers: 2, experts: 4, used: 1, tokens: 6, model: 'fake', expertBytes: undefined });
  assert.deepEqual([...(await trace.read(0, 6)).all], [...routing, ...routing]);
  await trace.close();
});

test('--json says the shape, and --raw takes the text as it is', async () => {
  const path = join(root, 'json');
  const { library, asked } = fakeLibrary(() => ['ice'], { routing });
  const { context, out, err } = world(library);
  assert.equal(await main(['trace', '-p', 'as it is', '--raw', '--json', '-o', path], context), 0);
  assert.deepEqual(asked[0]?.prompts[0]?.prompt, { text: 'as it is' });
  assert.deepEqual(JSON.parse(out()), { path, prompts: 1, tokens: 3, layers: 2, experts: 4, used: 1, model: 'fake' });
  assert.equal(err(), '');
});

test('a folder with a trace, and one that cannot be, is told before a model is loaded', async () => {
  const { library, asked } = fakeLibrary(() => ['ice'], { routing });
  const conclave = async (path: string) => {
    const { context, err } = world(library);
    return { code: await main(['trace', '-p', 'x', '-o', path], context), err: err() };
  };
  assert.equal((await conclave(join(root, 'taken'))).code, 0);
  const again = await conclave(join(root, 'taken'));
  assert.equal(again.code, 2);
  assert.match(again.err, /there is a trace in it already/);
  writeFileSync(join(root, 'file'), '');
  assert.match((await conclave(join(root, 'file'))).err, /file: cannot be written/);
  assert.equal(asked.length, 1);
});

test('what fails leaves no trace: a model that cannot be recorded, a generation, rows that are none of the model’s', async () => {
  const fault = new Refusal('the routing of this model cannot be recorded');
  const refusing = async () => {
    throw fault;
  };
  const failing = () => {
    throw fault;
  };
  for (const [name, library, message] of [
    ['refused', { ...fakeLibrary(() => []).library, load: refusing }, /cannot be recorded/],
    ['failed', fakeLibrary(failing, { routing }).library, /cannot be recorded/],
    ['strange', fakeLibrary(() => ['ice'], { routing: [0, 4] }).library, /was given expert 4 of 4/],
  ] as const) {
    const { context, err } = world(library);
    const path = join(root, name);
    assert.equal(await main(['trace', '-p', 'x', '-o', path], context), 1);
    assert.match(err(), message);
    assert.ok(!existsSync(join(path, 'trace.bin')) && !existsSync(join(path, 'trace.json')), name);
  }
});

test('an empty file has no prompts', async () => {
  const prompts = join(root, 'empty.txt');
  writeFileSync(prompts, '\n \n');
  const { context, err } = world(fakeLibrary(() => []).library);
  assert.equal(await main(['trace', '-f', prompts, '-o', join(root, 'none')], context), 2);
  assert.match(err(), /has no prompt in it; one a line is expected/);
});
