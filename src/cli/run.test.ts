/** `conclave run`, `start` and chats, against a library made for the test: what is asked, what goes where. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Asked, fakeLibrary, world } from '../../test/support/cli-world.ts';
import type { LoadOptions } from '../engine/types.ts';
import { SourceError, UsageError } from '../errors.ts';
import { RunStats } from '../experts/stats.ts';
import { main } from './commands.ts';
import type { Library } from './context.ts';
import { DEFAULT_QUESTION } from './run.ts';

const words = fakeLibrary(() => ['A glacier', ' is ice.']);

test('run -p prints the answer alone on standard output and the figures on standard error', async () => {
  const { library, asked } = fakeLibrary(() => ['A glacier', ' is ice.']);
  const { context, out, err } = world(library);
  assert.equal(
    await main(
      ['run', '-m', 'x.gguf', '-p', 'Hi', '--system', 'Be brief', '--temp', '0', '-n', '-1', '-t', '3', '-c', '99'],
      context,
    ),
    0,
  );
  assert.equal(out(), 'A glacier is ice.\n');
  assert.equal(err(), 'prefill 5 tokens (2 more from the cache), 500 tokens/s · decode 2 tokens, 150 tokens/s\n');
  const [{ source, load, prompts, disposed }] = asked as [Asked];
  assert.equal(source, 'x.gguf');
  assert.equal(load.threads, 3);
  assert.equal(load.context, 99);
  assert.deepEqual(prompts[0]!.prompt, [
    { role: 'system', content: 'Be brief' },
    { role: 'user', content: 'Hi' },
  ]);
  assert.equal(prompts[0]!.options.temperature, 0);
  assert.ok(!('maxTokens' in prompts[0]!.options), '-n -1 means no limit');
  assert.equal(disposed, 1);
});

test('every sampling flag reaches the library under its name', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  const line =
    '-p x --temp 0.5 --top-k 3 --top-p 0.4 --min-p 0.1 -s 9 --repeat-penalty 1.1 --repeat-last-n 7 --presence-penalty 1 ' +
    '--frequency-penalty -1 --logit-bias 5+2 --logit-bias 6-inf --stop END -n 4 --no-think --chat-template-kwargs {"a":1}';
  assert.equal(await main(['run', ...line.split(' ')], world(library).context), 0);
  const { signal, ...options } = asked[0]!.prompts[0]!.options;
  assert.ok(signal instanceof AbortSignal);
  assert.deepEqual(options, {
    temperature: 0.5,
    topK: 3,
    topP: 0.4,
    minP: 0.1,
    seed: 9,
    repeatPenalty: 1.1,
    penaltyWindow: 7,
    presencePenalty: 1,
    frequencyPenalty: -1,
    logitBias: { 5: 2, 6: -Infinity },
    stop: ['END'],
    maxTokens: 4,
    chatTemplateKwargs: { enable_thinking: false, a: 1 },
  });
});

test('every placement flag reaches the library under its name', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  const line =
    '-p x -c 5 -t 2 -b 16 --device reference --kv f32 --memory 1GB --ignore-key a --ignore-key b --arena-bytes 8MiB';
  assert.equal(await main(['run', ...line.split(' ')], world(library).context), 0);
  const { signal, onProgress, onFault, ...options } = asked[0]!.load;
  assert.ok(signal instanceof AbortSignal && onProgress !== undefined && onFault !== undefined);
  assert.deepEqual(options, {
    context: 5,
    threads: 2,
    batch: 16,
    device: 'reference',
    cache: 'f32',
    memoryBytes: 1e9,
    ignoreKeys: ['a', 'b'],
    arenaBytes: 8 * 2 ** 20,
  });
});

test('the device, its layers and its memory reach the library as what they mean', async () => {
  const means: readonly (readonly [string, LoadOptions])[] = [
    ['--device gpu:1 -g 3 --gpu-memory 2GiB', { device: 'gpu:1', gpuLayers: 3, gpuMemoryBytes: 2 ** 31 }],
    ['--gpu-layers auto', { gpuLayers: 'auto' }],
    ['--n-gpu-layers -1', { gpuLayers: -1 }],
    ['-g 0', { gpuLayers: 0 }],
    ['--device auto', { device: 'auto' }],
  ];
  for (const [line, expected] of means) {
    const { library, asked } = fakeLibrary(() => ['x']);
    assert.equal(await main(['run', '-p', 'x', ...line.split(' ')], world(library).context), 0);
    const { signal, onProgress, onFault, ...options } = asked[0]!.load;
    assert.deepEqual(options, expected, line);
  }
});

test('a CPU that serves for want of a GPU is told once, in one line', async () => {
  const { library } = fakeLibrary(() => ['x']);
  const load: Library['load'] = async (source, options) => {
    const model = await library.load(source, options);
    return { ...model, plan: { ...model.plan, device: 'cpu', deviceReason: 'no GPU was found\x1b' } };
  };
  const { context, out, err } = world({ ...library, load });
  assert.equal(await main(['run', '--device', 'auto', '-p', 'x'], context), 0);
  assert.equal(out(), 'x\n');
  assert.equal(
    err()
      .match(/^conclave: .*$/gm)
      ?.join(),
    'conclave: runs on the CPU: no GPU was found\\x1b',
  );
});

test('a fault that the model goes on with is told in one line', async () => {
  const { library } = fakeLibrary(() => ['x']);
  const load: Library['load'] = async (source, options) => {
    options?.onFault?.(new SourceError('m.gguf: is gone\x1b'));
    return library.load(source, options);
  };
  const { context, out, err } = world({ ...library, load });
  assert.equal(await main(['run', '-p', 'x'], context), 0);
  assert.equal(out(), 'x\n');
  assert.deepEqual(err().match(/^conclave: .*$/gm), ['conclave: m.gguf: is gone\\x1b']);
});

test('--raw hands the text over as it is', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  await main(['run', '--raw', '-p', '<s>one'], world(library).context);
  assert.deepEqual(asked[0]!.prompts[0]!.prompt, { text: '<s>one' });
});

test('a piped prompt is read from standard input, without its last line end', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  const { context, stdin } = world(library);
  stdin.end('What is\nice?\n');
  assert.equal(await main(['run'], context), 0);
  assert.deepEqual(asked[0]!.prompts[0]!.prompt, [{ role: 'user', content: 'What is\nice?' }]);
});

test('an empty or undecodable standard input is a usage error, told before any model is loaded', async () => {
  for (const [bytes, message] of [
    [Buffer.from(''), /standard input is empty/],
    [Buffer.from([0xff, 0x41]), /not UTF-8/],
  ] as const) {
    const { library, asked } = fakeLibrary(() => ['x']);
    const { context, stdin, err } = world(library);
    stdin.end(bytes);
    assert.equal(await main(['run'], context), 2);
    assert.match(err(), message);
    assert.equal(asked.length, 0);
  }
});

test('start asks the default question greedily, whatever standard input is, and takes the flags of run', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  assert.equal(await main(['start'], world(library).context), 0);
  assert.equal(await main(['start', '-p', 'Else?', '--temp', '1'], world(library).context), 0);
  assert.deepEqual(asked[0]!.prompts[0]!.prompt, [{ role: 'user', content: DEFAULT_QUESTION }]);
  assert.match(String(asked[0]!.source), /lexicon-glm4moe-Q4_K_M\.gguf$/);
  assert.equal(asked[0]!.prompts[0]!.options.temperature, 0);
  assert.deepEqual(asked[1]!.prompts[0]!.prompt, [{ role: 'user', content: 'Else?' }]);
  assert.equal(asked[1]!.prompts[0]!.options.temperature, 1);
});

test('--json prints one object and nothing else', async () => {
  const { context, out, err } = world(words.library);
  assert.equal(await main(['start', '--json'], context), 0);
  const printed = JSON.parse(out());
  assert.equal(printed.text, 'A glacier is ice.');
  assert.equal(printed.finish, 'stop');
  assert.deepEqual(printed.tokens, [1]);
  assert.equal(printed.usage.seed, 42);
  assert.equal(err(), '');
});

test('a terminal gets a progress bar that is taken away again, and no control characters of the model', async () => {
  const { library } = fakeLibrary(() => ['red \x1b[31m', 'alert\x07\n']);
  const { context, out, err } = world(library, true);
  await main(['run', '-p', 'x'], context);
  assert.equal(out(), 'red \\x1b[31malert\\x07\n');
  assert.match(err(), /loading \[#+\.*\] 50 B of 100 B, .*\r\x1b\[2K.*lexicon-glm4moe-Q4_K_M\.gguf: 100 B in /s);
  // A pipe gets exactly what the model wrote, and no bar.
  const piped = world(library);
  await main(['run', '-p', 'x'], piped.context);
  assert.equal(piped.out(), 'red \x1b[31malert\x07\n');
  assert.doesNotMatch(piped.err(), /loading/);
});

test('Ctrl-C ends a generation with 130 and no message, and the model is disposed of', async () => {
  let interrupt = () => {};
  const { library, asked } = fakeLibrary(function* () {
    yield 'one';
    interrupt();
    yield 'two';
  });
  const { context, err, ...rest } = world(library);
  interrupt = rest.interrupt;
  assert.equal(await main(['run', '-p', 'x'], context), 130);
  assert.equal(err(), '');
  assert.equal(asked[0]!.disposed, 1);
});

test('a chat keeps the conversation, and a Ctrl-C stops one answer only', async () => {
  let interrupt = () => {};
  const { library, asked } = fakeLibrary(function* (prompt) {
    yield `answer ${(prompt as readonly unknown[]).length}`;
    if ((prompt as readonly { content: string }[]).at(-1)!.content === 'stop me') interrupt();
    yield '!';
  });
  const { context, stdin, out, ...rest } = world(library);
  interrupt = rest.interrupt;
  stdin.end('first\n\nstop me\ntwo \\\nlines\n/clear\nfresh\n/exit\nnever\n');
  assert.equal(await main(['run', '--chat', '--system', 'S'], context), 0);
  assert.equal(out(), 'answer 2!\nanswer 4\nanswer 6!\nanswer 2!\n');
  const contents = asked[0]!.prompts.map(({ prompt }) =>
    (prompt as readonly { content: string }[]).map(({ content }) => content),
  );
  assert.deepEqual(contents, [
    ['S', 'first'],
    ['S', 'first', 'answer 2!', 'stop me'],
    ['S', 'first', 'answer 2!', 'stop me', 'answer 4', 'two \nlines'],
    ['S', 'fresh'],
  ]);
  assert.equal(asked[0]!.sessions, 2);
  assert.equal(asked[0]!.disposed, 1);
});

test('a second Ctrl-C leaves the chat with 130', async () => {
  let interrupt = () => {};
  const { library } = fakeLibrary(async function* () {
    yield 'a';
    interrupt();
    interrupt();
    yield 'b';
  });
  const { context, stdin, out, ...rest } = world(library);
  interrupt = rest.interrupt;
  stdin.write('hello\n');
  assert.equal(await main(['run', '--chat'], context), 130);
  assert.equal(out(), 'a\n');
});

test('a message that does not fit is told, and the chat goes on without it', async () => {
  const { library, asked } = fakeLibrary(function* (prompt) {
    if ((prompt as readonly { content: string }[]).at(-1)!.content === 'long')
      throw new UsageError('the prompt has too many tokens');
    yield 'ok';
  });
  const { context, stdin, out, err } = world(library);
  stdin.end('long\nshort\n');
  assert.equal(await main(['run', '-i'], context), 0);
  assert.equal(out(), 'ok\n');
  assert.match(err(), /^conclave: the prompt has too many tokens$/m);
  assert.deepEqual(asked[0]!.prompts[1]!.prompt, [{ role: 'user', content: 'short' }]);
});

test('a missing prompt file is exit code 1 and names the file', async () => {
  const { context, err } = world(words.library);
  assert.equal(await main(['run', '-f', '/nowhere/prompt.txt'], context), 1);
  assert.match(err(), /^conclave: cannot read the prompt file \/nowhere\/prompt\.txt: no such file\n$/);
});

test('--expert-stats says after the answer what the experts did, on standard error, or as a part of the JSON object', async () => {
  const stats = new RunStats([0], 4);
  stats.began('step', 1);
  stats.routed(0, [1, 2]);
  stats.ended();
  const experts = { ...stats.snapshot(), notCounted: [] };
  const memory = { device: 'gpu', bytes: 5e8, peakBytes: 6e8, plannedBytes: 7e8, memoryBytes: 8e8 } as const;
  const run = async (...flags: readonly string[]) => {
    const { library, asked } = fakeLibrary(() => ['ice'], { experts, memory });
    const { context, out, err } = world(library);
    assert.equal(await main(['run', '-p', 'Hi', ...flags], context), 0);
    return { out: out(), err: err(), asked: (asked as [Asked])[0] };
  };
  const told = await run('--expert-stats');
  assert.equal(told.asked.load.expertStats, true);
  assert.equal(told.out, 'ice\n');
  assert.match(told.err, /tokens\/s\n\nexperts while decoding: 1 run of 1 row in all, 1 layer of 4 experts\nlayer /);
  assert.match(told.err, /\npeak memory of the GPU: 600 MB, 700 MB were planned, 800 MB may be used\n$/);
  const data = JSON.parse((await run('--expert-stats', '--json')).out);
  assert.deepEqual([data.experts, data.gpuMemory], [experts, memory]);
  const silent = await run();
  assert.doesNotMatch(silent.err, /experts|memory/);
  assert.deepEqual(silent.asked.stats, []);
});
