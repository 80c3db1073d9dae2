/** `conclave trace` against a library made for the test: what is run, and what comes to stand in the folder. */

import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { type Asked, fakeLibrary, world } from '../../test/support/cli-world.ts';
import type { Model } from '../engine/types.ts';
import { Refusal, UsageError } from '../errors.ts';
import type { PlannedWeight } from '../plan/plan.ts';
import { main } from './commands.ts';
import type { Library } from './context.ts';
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

test('an expert has the bytes of its format, wherever it lies and whatever it takes there', async () => {
  const { library } = fakeLibrary(() => ['ice'], { routing });
  const weights = (at: Omit<PlannedWeight, 'name' | 'format' | 'shape'>) =>
    ['layers.0', 'layers.1'].flatMap((layer): PlannedWeight[] => [
      { name: `${layer}.moe.gate`, format: 'Q4_K', shape: [4, 8, 256], ...at },
      { name: `${layer}.moe.up`, format: 'Q4_K', shape: [4, 8, 256], ...at },
      { name: `${layer}.moe.down`, format: 'Q8_0', shape: [4, 256, 32], ...at },
      { name: `${layer}.moe.shared.gate`, format: 'F32', shape: [8, 256], ...at },
    ]);
  const gpu = { bytes: 99, device: 'gpu' } as const;
  for (const [name, all] of [
    ['cpu', weights({ bytes: 10, device: 'cpu', layout: 'interleave4' })],
    ['reference', weights({ bytes: 5000, device: 'reference', layout: 'decoded to f32' })],
    ['both', [...weights(gpu), ...weights({ bytes: 10, device: 'cpu' })]],
  ] as const) {
    const path = join(root, `bytes ${name}`);
    const load: Library['load'] = async (...given) => {
      const model = await library.load(...given);
      return { ...model, plan: { ...model.plan, weights: all } } as Model;
    };
    const { context, out } = world({ ...library, load });
    assert.equal(await main(['trace', '-p', 'x', '--json', '-o', path], context), 0);
    // Blocks of 256 values in 144 bytes, and of 32 in 34.
    assert.equal(JSON.parse(out()).expertBytes, 8 * 144 + 8 * 144 + 256 * 34, name);
  }
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

test('of several prompts the one is named that cannot be run', async () => {
  const prompts = join(root, 'long.txt');
  const conclave = async (text: string, name: string) => {
    writeFileSync(prompts, text);
    const { library } = fakeLibrary((prompt) => {
      if (JSON.stringify(prompt).includes('long')) throw new UsageError('the prompt is too long');
      return ['ice'];
    });
    const { context, err } = world(library);
    assert.equal(await main(['trace', '-f', prompts, '-o', join(root, name)], context), 2);
    return err();
  };
  assert.match(await conclave('a\n\nlong\nb\n', 'third'), /^conclave: prompt 2 of 3: the prompt is too long$/m);
  assert.match(await conclave('long\n', 'alone'), /^conclave: the prompt is too long$/m);
});

test('an empty file has no prompts', async () => {
  const prompts = join(root, 'empty.txt');
  writeFileSync(prompts, '\n \n');
  const { context, err } = world(fakeLibrary(() => []).library);
  assert.equal(await main(['trace', '-f', prompts, '-o', join(root, 'none')], context), 2);
  assert.match(err(), /has no prompt in it; one a line is expected/);
});
