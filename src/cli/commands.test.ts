/** What all commands share, against a library made for the test: errors, exit codes, help; and the plan. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { fakeLibrary, plan, world } from '../../test/support/cli-world.ts';
import { CorruptFileError, Refusal } from '../errors.ts';
import { shapes } from '../synthetic/shapes.ts';
import { checkNode, main } from './commands.ts';

const words = fakeLibrary(() => ['A glacier', ' is ice.']);

for (const [line, message] of [
  ['run -p a -f b', /--prompt and --file cannot be used together/],
  ['run --raw --system s -p x', /--raw and --system cannot be used together/],
  ['run -i --raw', /--raw and --chat cannot be used together/],
  ['run -i --json', /--json needs a prompt/],
  ['run What', /unexpected argument "What": a prompt goes after -p/],
  ['run model.gguf', /a model goes after -m/],
  ['run -p x --logit-bias 5', /--logit-bias expects a token id, a sign and a number.*found "5"/],
  ['run -p x --repeat-penalty 0', /repeatPenalty: found 0, expected a number from 0\.000001 to 1000000/],
  ['run -p x --presence-penalty -1e308', /presencePenalty: found -1e\+308, expected a number from -1000000/],
  ['run -p x --stop=', /stop: found an array of 1, expected .*texts of 1 to 4096/],
  ['trace -p x', /give the folder that the trace goes to/],
  ['trace -o y', /give a prompt with -p, or a file of prompts/],
  ['trace -o y -p x -f z', /--prompt and --file cannot be used together/],
  ['rnu', /unknown command "rnu"; did you mean run\?/],
  ['frobnicate', /unknown command "frobnicate"; there are start, run, inspect, plan, bench, trace, replay/],
  ['-p hello', /a command comes first, found -p; try conclave run -p hello/],
  ['plan a.gguf b.gguf', /unexpected argument "b.gguf"/],
  ['inspect -m a.gguf b.gguf', /give one file, found -m a\.gguf and b\.gguf/],
] as const) {
  test(`conclave ${line} is a usage error of one line, exit code 2`, async () => {
    const { context, out, err } = world(words.library);
    assert.equal(await main(line.split(' '), context), 2);
    assert.match(err(), message);
    assert.match(err(), /^conclave: [^\n]+\n$/);
    assert.equal(out(), '');
  });
}

test('options are checked before a model is loaded', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  const { context } = world(library);
  assert.equal(await main(['run', '-p', 'x', '--repeat-penalty', '0'], context), 2);
  assert.equal(await main(['run', '-p', 'x', '--frequency-penalty', '1e7'], context), 2);
  assert.deepEqual(asked, []);
});

test('errors are one line; a refusal adds its reasons; --verbose adds code, data, cause and stack', async () => {
  const faults = [
    new CorruptFileError('x.gguf: broken\nin two lines', { data: { key: 'a' }, cause: new Error('deep\x1b[31m') }),
    new Refusal('no kernel serves it; tried:', { reasons: [{ row: 'row-a', reason: 'needs 256' }] }),
    new TypeError('surprise'),
  ];
  const shown: string[][] = [];
  for (const fault of faults) {
    for (const flag of [[], ['--verbose']]) {
      const { context, err } = world({
        ...words.library,
        load: async () => {
          throw fault;
        },
      });
      assert.equal(await main(['run', '-p', 'x', ...flag], context), 1);
      shown.push([err()]);
    }
  }
  const [corrupt, corruptVerbose, refusal, refusalVerbose, surprise] = shown.map(([text]) => text!);
  assert.equal(corrupt, 'conclave: x.gguf: broken in two lines\n');
  assert.match(
    corruptVerbose!,
    /code: corrupt_file\ndata: \{\s+"key": "a"\s+\}\nstack:\n +at [\s\S]*\ncaused by: deep\\x1b\[31m\n/,
  );
  assert.equal(refusal, 'conclave: no kernel serves it; tried:\n  row-a: needs 256\n');
  assert.match(refusalVerbose!, /code: refused/);
  assert.equal(surprise, 'conclave: surprise\nconclave: this was not expected; --verbose prints where it comes from\n');
});

test('plan prints the plan in words, or as JSON', async () => {
  const text = world(words.library);
  assert.equal(await main(['plan', 'x.gguf'], text.context), 0);
  assert.match(text.out(), /^model +fake/);
  const json = world(words.library);
  assert.equal(await main(['plan', '--json'], json.context), 0);
  assert.deepEqual(JSON.parse(json.out()), plan);
});

test('help and version', async () => {
  for (const command of ['start', 'run', 'inspect', 'plan', 'bench', 'trace', 'replay']) {
    const { context, out, err } = world(words.library);
    assert.equal(await main([command, '--help'], context), 0);
    assert.match(out(), /-h, --help/);
    assert.equal(out().includes('without it: a chat'), command === 'run');
    for (const shape of Object.keys(shapes)) {
      assert.equal(
        new RegExp(`[ \n]${shape}[,.]`).test(out()),
        ['plan', 'bench'].includes(command),
        `${command}: ${shape}`,
      );
    }
    assert.deepEqual(
      out()
        .split('\n')
        .filter((line) => line.length > 120),
      [],
    );
    assert.equal(err(), '');
    const all = world(words.library);
    await main([], all.context);
    assert.match(all.out(), new RegExp(`^  ${command} `, 'm'));
  }
  const { context, out } = world(words.library);
  assert.equal(await main(['--version'], context), 0);
  assert.match(out(), /^\d+\.\d+\.\d+\n$/);
});

test('a Node that is too old is told so, at the age that package.json states', () => {
  const { engines } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
  assert.equal(engines.node, '>=22');
  checkNode('22.0.0');
  checkNode(process.versions.node);
  assert.throws(() => checkNode('20.20.2'), /found Node 20\.20\.2; Conclave needs Node 22 or later/);
});
