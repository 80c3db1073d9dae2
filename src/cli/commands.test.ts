/** Commands against a library made for the test: what goes where, in which order, with which exit code. */

import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import type { GenerateOptions, LoadOptions, Model, Part, Prompt, Session } from '../engine/types.ts';
import { CorruptFileError, Refusal, UsageError } from '../errors.ts';
import type { SourceInput } from '../format/source.ts';
import type { Plan } from '../plan/plan.ts';
import { series, tokenSource } from './bench.ts';
import { main } from './commands.ts';
import type { Context, Library } from './context.ts';
import { DEFAULT_QUESTION } from './run.ts';

const plan: Plan = {
  architecture: 'fake',
  device: 'reference',
  parts: [
    { device: 'reference', first: 0, end: 2, features: [], bytes: { weights: 0, cache: 0, buffers: 0, total: 0 } },
  ],
  threads: 1,
  features: [],
  context: 64,
  contextReason: 'asked for',
  maxRows: { prompt: 8, step: 64, wanted: 64 },
  cache: { type: 'f32', pages: 1, pageRows: 64, bytes: 1 },
  arenas: [],
  arenaBytes: 0,
  operations: [],
  weights: [],
  buffers: [],
  ignored: [],
  bytes: { weights: 1, cache: 1, buffers: 1, total: 3 },
  bytesPerToken: 1000,
  reproducible: true,
};

interface Asked {
  readonly source: SourceInput;
  readonly load: LoadOptions;
  readonly prompts: { prompt: Prompt; options: GenerateOptions }[];
  sessions: number;
  disposed: number;
}

/** A model whose answer to a prompt is what `answer` yields; it keeps what it was asked. */
function fakeLibrary(answer: (prompt: Prompt, options: GenerateOptions) => AsyncIterable<string> | Iterable<string>) {
  const asked: Asked[] = [];
  const library: Library = {
    async planModel() {
      return { plan, info: { name: 'fake', architecture: 'fake', parameters: 1, context: 64, vocabulary: 100 } };
    },
    async load(source, load = {}) {
      const record: Asked = { source, load, prompts: [], sessions: 0, disposed: 0 };
      asked.push(record);
      load.onProgress?.({ bytesDone: 50, bytesTotal: 100 });
      load.onProgress?.({ bytesDone: 100, bytesTotal: 100 });
      const model: Partial<Model> = {
        info: { name: 'fake', architecture: 'fake', parameters: 1, context: 64, vocabulary: 100 },
        plan: { ...plan, explain: () => '' },
        session: () => {
          record.sessions++;
          return {
            generate: (prompt: Prompt, options: GenerateOptions = {}) => generate(record, prompt, options),
            dispose: async () => {},
          } as unknown as Session;
        },
        async dispose() {
          record.disposed++;
        },
      };
      return model as Model;
    },
  };
  async function* generate(record: Asked, prompt: Prompt, options: GenerateOptions): AsyncGenerator<Part> {
    record.prompts.push({ prompt: structuredClone(prompt), options });
    let text = '';
    let count = 0;
    for await (const piece of answer(prompt, options)) {
      options.signal?.throwIfAborted();
      text += piece;
      count++;
      yield { type: 'text', text: piece, tokens: [count] };
    }
    const completionTokens = options.ignoreEos === true ? options.maxTokens! : count;
    const usage = {
      promptTokens: 7,
      cachedTokens: 2,
      completionTokens,
      prefillMs: 10,
      decodeMs: 20,
      prefillTokensPerSecond: 500,
      decodeTokensPerSecond: 150,
      seed: 42,
    };
    yield { type: 'finish', reason: 'stop', text, tokens: [1], usage };
  }
  return { library, asked };
}

interface World {
  readonly context: Context;
  readonly stdin: PassThrough;
  out(): string;
  err(): string;
  interrupt(): void;
}

function world(library: Library, terminal = false): World {
  const stdin = Object.assign(new PassThrough(), { isTTY: terminal });
  const stdout = Object.assign(new PassThrough(), { isTTY: terminal });
  const stderr = Object.assign(new PassThrough(), { isTTY: terminal, columns: 80 });
  let handlers: (() => void)[] = [];
  const text = { out: '', err: '' };
  stdout.on('data', (chunk: Buffer) => {
    text.out += chunk;
  });
  stderr.on('data', (chunk: Buffer) => {
    text.err += chunk;
  });
  return {
    stdin,
    out: () => text.out,
    err: () => text.err,
    interrupt: () => handlers.at(-1)?.(),
    context: {
      stdin,
      stdout,
      stderr,
      library: async () => library,
      onInterrupt(handler) {
        handlers.push(handler);
        return () => {
          handlers = handlers.filter((each) => each !== handler);
        };
      },
      exit: (code) => {
        throw new Error(`exit ${code}`);
      },
    },
  };
}

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
  const { signal, onProgress, ...options } = asked[0]!.load;
  assert.ok(signal instanceof AbortSignal && onProgress !== undefined);
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
    const { signal, onProgress, ...options } = asked[0]!.load;
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
  ['rnu', /unknown command "rnu"; did you mean run\?/],
  ['frobnicate', /unknown command "frobnicate"; there are start, run, inspect, plan, bench/],
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

for (const [flags, message] of [
  [['-p', '9007199254740991'], /the prefill test of 9007199254740991 tokens \(-p\) needs a context of/],
  [['-p', '0', '-n', '5000'], /the decode test of 5000 tokens \(-n\) needs a context of 5001, and the model has \d+/],
] as const) {
  test(`bench ${flags.join(' ')} does not fit the context: a usage error before anything is computed`, async () => {
    const { library, asked } = fakeLibrary(() => ['x']);
    const { context, err } = world(library);
    assert.equal(await main(['bench', ...flags, '-r', '1'], context), 2);
    assert.match(err(), message);
    assert.deepEqual([asked[0]!.prompts, asked[0]!.disposed], [[], 1]);
  });
}

test('a missing prompt file is exit code 1 and names the file', async () => {
  const { context, err } = world(words.library);
  assert.equal(await main(['run', '-f', '/nowhere/prompt.txt'], context), 1);
  assert.match(err(), /^conclave: cannot read the prompt file \/nowhere\/prompt\.txt: no such file\n$/);
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

test('bench measures what it says: a warm-up dropped, sessions of their own, nothing ended by an end token', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  const { context, out } = world(library);
  assert.equal(await main(['bench', '-p', '16', '-n', '8', '-r', '2', '--json'], context), 0);
  const result = JSON.parse(out());
  assert.deepEqual(result.prefill, { tokens: 16, runs: [500, 500], median: 500, min: 500, max: 500 });
  assert.deepEqual(result.decode, { tokens: 8, runs: [150, 150], median: 150, min: 150, max: 150 });
  assert.ok(result.bandwidth.bytesPerSecond > 0 && result.bandwidth.bytes >= 65_536);
  assert.ok(Math.abs(result.bandwidthShare - (150 * 1000) / result.bandwidth.bytesPerSecond) < 1e-12);
  assert.ok(result.peakMemoryBytes > 1e7);
  const [{ prompts, sessions }] = asked as [Asked];
  assert.equal(sessions, 6);
  const tokens = prompts.map(({ prompt }) => (prompt as { tokens: number[] }).tokens);
  assert.deepEqual(
    tokens.map((each) => each.length),
    [16, 16, 16, 1, 1, 1],
  );
  assert.ok(tokens.flat().every((id) => Number.isInteger(id) && id >= 0 && id < 100));
  assert.notDeepEqual(tokens[0], tokens[1]);
  assert.deepEqual(
    prompts.map(({ options }) => options.maxTokens),
    [1, 1, 1, 8, 8, 8],
  );
  assert.ok(prompts.every(({ options }) => options.ignoreEos === true && options.temperature === 0));
});

test('random tokens are the same for a seed, differ between seeds and cover the vocabulary', () => {
  assert.deepEqual(tokenSource(1000, 7)(50), tokenSource(1000, 7)(50));
  assert.notDeepEqual(tokenSource(1000, 7)(50), tokenSource(1000, 8)(50));
  assert.equal(new Set(tokenSource(10, 1)(500)).size, 10);
});

test('the median of an even number of runs lies between the two in the middle', () => {
  assert.deepEqual(series(1, [4, 1, 3, 2]), { tokens: 1, runs: [4, 1, 3, 2], median: 2.5, min: 1, max: 4 });
  assert.equal(series(1, [5, 1, 3]).median, 3);
});

test('help and version', async () => {
  for (const command of ['start', 'run', 'inspect', 'plan', 'bench']) {
    const { context, out, err } = world(words.library);
    assert.equal(await main([command, '--help'], context), 0);
    assert.match(out(), /-h, --help/);
    assert.equal(out().includes('without it: a chat'), command === 'run');
    assert.equal(err(), '');
    const all = world(words.library);
    await main([], all.context);
    assert.match(all.out(), new RegExp(`^  ${command} `, 'm'));
  }
  const { context, out } = world(words.library);
  assert.equal(await main(['--version'], context), 0);
  assert.match(out(), /^\d+\.\d+\.\d+\n$/);
});
