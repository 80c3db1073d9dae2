/** The command line as a person runs it: the executable, the bundled model, real pipes and signals. */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = new URL('../../', import.meta.url);
const entry = fileURLToPath(new URL('src/cli/main.ts', root));
const bad = (name: string) => fileURLToPath(new URL(`test/fixtures/bad/${name}`, root));

/** The end-of-text tokens of the bundled model, banned: it then writes until the context is full. */
const ENDLESS = ['--logit-bias', '6143-inf', '--logit-bias', '6141-inf', '--temp', '0'];
/** A run that hangs is a failure, not a wait. */
const LIMIT_MS = 60_000;

interface Outcome {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly out: string;
  readonly err: string;
}

interface RunOptions {
  readonly stdin?: string;
  /** Standard input stays open after `stdin`, as a person's would. */
  readonly keepOpen?: boolean;
  /** Beside this process's own. */
  readonly env?: Readonly<Record<string, string>>;
  /** Called at the first text on standard output. */
  onText?(child: ChildProcess): void;
}

function conclave(argv: readonly string[], options: RunOptions = {}): Promise<Outcome> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [entry, ...argv], {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { ...process.env, ...options.env },
    });
    const text = { out: '', err: '' };
    const limit = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS);
    child.stdout.once('data', () => options.onText?.(child));
    child.stdout.on('data', (chunk: Buffer) => {
      text.out += chunk;
    });
    child.stderr.on('data', (chunk: Buffer) => {
      text.err += chunk;
    });
    child.on('error', reject);
    child.on('close', (code, signal) => {
      clearTimeout(limit);
      resolve({ code, signal, ...text });
    });
    child.stdin.on('error', () => {});
    child.stdin.write(options.stdin ?? '');
    if (options.keepOpen !== true) child.stdin.end();
  });
}

test('start answers the default question with the bundled model, and says how fast', async () => {
  const { code, out, err } = await conclave(['start']);
  assert.equal(err.match(/^conclave:/m), null, err);
  assert.equal(code, 0);
  assert.equal(out, 'A glacier is a slowly moving mass of ice.\n');
  assert.match(
    err,
    /^> What is a glacier\?\nprefill \d+ tokens, [\d.,]+ tokens\/s · decode \d+ tokens, [\d.,]+ tokens\/s\n$/,
  );
});

test('run answers a prompt from -p, from -f - and from a pipe alike', async () => {
  const question = 'What is a computer?';
  const runs = await Promise.all([
    conclave(['run', '--temp', '0', '-p', question]),
    conclave(['run', '--temp', '0', '-f', '-'], { stdin: `${question}\n` }),
    conclave(['run', '--temp', '0'], { stdin: `${question}\n` }),
  ]);
  for (const { code, out } of runs) {
    assert.equal(code, 0);
    assert.equal(out, 'A computer is a machine for performing calculations automatically.\n');
  }
});

test('--json says what was generated and why it ended', async () => {
  const { code, out, err } = await conclave(['run', '--temp', '0', '-n', '4', '-p', 'What is a computer?', '--json']);
  assert.equal(code, 0);
  assert.equal(err, '');
  const { text, tokens, finish, usage, model } = JSON.parse(out);
  assert.equal(tokens.length, 4);
  assert.ok('A computer is a machine for performing'.startsWith(text) && text.length > 0, text);
  assert.equal(finish, 'length');
  assert.equal(usage.completionTokens, 4);
  assert.equal(model.architecture, 'glm4moe');
});

test('--raw continues the text as it is, and a stop text ends it without being printed', async () => {
  const { code, out } = await conclave([
    'run',
    '--raw',
    '--temp',
    '0',
    '--stop',
    'mass',
    '-p',
    '<|im_start|>user\nWhat is a glacier?<|im_end|>\n<|im_start|>assistant\n',
  ]);
  assert.equal(code, 0);
  assert.equal(out, 'A glacier is a slowly moving \n');
});

test('the same seed draws the same answer', async () => {
  const argv = ['run', '--temp', '1.5', '-s', '11', '-n', '24', '-p', 'Define justice.'];
  const [first, second] = await Promise.all([conclave(argv), conclave(argv)]);
  assert.equal(first.code, 0);
  assert.ok(first.out.length > 1);
  assert.equal(first.out, second.out);
});

test('a chat over a pipe keeps the conversation and ends with its input', async () => {
  const { code, out } = await conclave(['run', '--chat', '--temp', '0'], {
    stdin: 'What is a glacier?\nWhat is a computer?\n',
  });
  assert.equal(code, 0);
  const [first, second] = out.split('\n');
  assert.equal(first, 'A glacier is a slowly moving mass of ice.');
  assert.ok(second!.length > 0);
});

for (const [name, argv, code, message] of [
  ['a missing file', ['run', '-m', '/nowhere/x.gguf', '-p', 'x'], 1, /\/nowhere\/x\.gguf/],
  ['a directory', ['run', '-m', fileURLToPath(root), '-p', 'x'], 1, /is a directory/],
  ['a bad flag', ['run', '--tmep', '0'], 2, /unknown flag --tmep; did you mean --temp\?/],
  ['a bad value', ['run', '--top-p', '2', '-p', 'x'], 2, /--top-p expects a number from 0 to 1, found "2"/],
  ['a corrupt file', ['run', '-m', bad('truncated-data.gguf'), '-p', 'x'], 1, /truncated-data\.gguf/],
  ['an unknown architecture', ['plan', '-m', bad('arch-unknown.gguf')], 1, /zzz/],
  ['an HTML page', ['inspect', bad('html.gguf')], 1, /HTML page/],
  ['a prompt beyond the context', ['run', '-c', '8', '-p', 'What is a glacier, and where would I see one?'], 2, /8/],
] as const) {
  test(`${name}: exit code ${code} and one line`, async () => {
    const outcome = await conclave(argv);
    assert.match(outcome.err, message);
    assert.match(outcome.err, /^conclave: [^\n]+\n$/);
    assert.equal(outcome.code, code);
    assert.equal(outcome.out, '');
  });
}

test('a refusal names each reason on a line of its own, --verbose adds its code', async () => {
  const { code, err } = await conclave(['run', '-m', bad('unknown-arch-key.gguf'), '-p', 'x', '--verbose']);
  assert.equal(code, 1);
  assert.match(err, /^conclave: .*llama\.attention\.warp_drive.*\n {2}llama\.attention\.warp_drive: unknown/);
  assert.match(err, /^code: refused$/m);
});

test('--ignore-key runs a file in spite of a key that nobody knows, and the plan shows it', async () => {
  const { code, out } = await conclave([
    'plan',
    bad('unknown-arch-key.gguf'),
    '--ignore-key',
    'llama.attention.warp_drive',
  ]);
  assert.equal(code, 0);
  assert.match(out, /ignored\n.*llama\.attention\.warp_drive: /);
});

test('a pipe closed early ends the run quietly', async () => {
  const { code, signal, err } = await conclave(['run', ...ENDLESS, '-p', 'What is a glacier?'], {
    onText: (child) => child.stdout!.destroy(),
  });
  assert.equal(signal, null);
  assert.equal(code, 0);
  assert.equal(err, '');
});

test('output that cannot be written is one line and exit code 1', () => {
  // Open for reading only.
  const unwritable = openSync(entry, 'r');
  const { status, stderr } = spawnSync(process.execPath, [entry, 'plan'], {
    stdio: ['ignore', unwritable, 'pipe'],
    encoding: 'utf8',
    timeout: LIMIT_MS,
  });
  closeSync(unwritable);
  assert.match(stderr, /^conclave: cannot write the output: [^\n]+\n$/);
  assert.equal(status, 1);
});

test('Ctrl-C ends a run with 130, keeps what was written and says nothing', async () => {
  const { code, out, err } = await conclave(['run', ...ENDLESS, '-p', 'What is a glacier?'], {
    onText: (child) => child.kill('SIGINT'),
  });
  assert.equal(code, 130);
  assert.ok(out.startsWith('A'), out);
  assert.equal(err, '');
});

test("Ctrl-C stops a chat's answer, a second one leaves", async () => {
  const { code, out, err } = await conclave(['run', '--chat', ...ENDLESS], {
    stdin: 'What is a glacier?\n',
    keepOpen: true,
    onText: (child) => {
      child.kill('SIGINT');
      child.stderr!.on('data', (chunk: Buffer) => {
        if (String(chunk).includes('(stopped)')) child.kill('SIGINT');
      });
    },
  });
  assert.equal(code, 130);
  assert.ok(out.startsWith('A'), out);
  assert.equal(err, '(stopped)\n');
});

test('inspect shows a whole model', async () => {
  const { code, out } = await conclave(['inspect']);
  assert.equal(code, 0);
  for (const said of [
    'GGUF version 3',
    'tokenizer.ggml.tokens',
    'string[6144]',
    'blk.4.ffn_gate_exps.weight',
    'Q4_K',
    '4.50 bits a value',
    '16 experts of 256, 4 used',
    'Conclave can run it.',
  ]) {
    assert.ok(out.includes(said), said);
  }
});

/** No driver, as on a machine without a GPU. */
const noGpu = { env: { VK_DRIVER_FILES: '/nowhere/icd.json', VK_ICD_FILENAMES: '/nowhere/icd.json' } };

test('--device auto answers on the CPU where there is no GPU, and says so once', async () => {
  const { code, out, err } = await conclave(['start', '--device', 'auto'], noGpu);
  assert.equal(code, 0, err);
  assert.equal(out, 'A glacier is a slowly moving mass of ice.\n');
  assert.deepEqual(err.match(/^conclave: .*$/gm), [
    'conclave: runs on the CPU: no GPU was found: check its Vulkan, Metal or D3D12 driver',
  ]);
});

test('a GPU that was asked for and is not there is refused with what to do, and nothing is loaded', async () => {
  for (const [flags, said] of [
    [['--device', 'gpu'], /^conclave: no GPU was found: .*--device cpu$/m],
    [['-g', '2'], /^conclave: no GPU was found: .*--device cpu$/m],
    [['--device', 'gpu:1'], /^conclave: gpu:1 was asked for, and no GPU was found: .*--device cpu$/m],
  ] as const) {
    const { code, out, err } = await conclave(['start', ...flags], noGpu);
    assert.deepEqual([code, out], [1, '']);
    assert.match(err, said);
  }
});

test('flags that ask for a GPU and for none at once are bad flags', async () => {
  for (const flags of [
    ['-g', '3', '--device', 'cpu'],
    ['--gpu-memory', '1GB'],
    ['-g', '-2'],
    ['--device', 'gpu:x'],
  ]) {
    const { code, err } = await conclave(['plan', ...flags]);
    assert.equal(code, 2, err);
    assert.match(err, /^conclave: .*(-g|--gpu-memory|--device)/);
  }
});

test('inspect shows a safetensors folder: what config.json says, the tensors, the model', async () => {
  const { code, out } = await conclave(['inspect', fileURLToPath(new URL('test/fixtures/families/qwen2moe', root))]);
  assert.equal(code, 0);
  assert.match(out, /qwen2moe\/model\.safetensors: safetensors/);
  assert.match(out, /config\.json: \d+ keys/);
  assert.match(out, /rope_parameters\.rope_theta +10000/);
  assert.match(out, /model\.layers\.0\.mlp\.experts\.0\.down_proj\.weight +BF16 +\[64, 32\]/);
  assert.match(out, /8 experts of 32, 2 used/);
  // The families' folders have no tokenizer of their own.
  assert.match(out, /cannot run it here\. refused: .*no tokenizer\.json/);
});

test('inspect --json holds every key, tensor and token', async () => {
  const { code, out } = await conclave(['inspect', '--json']);
  assert.equal(code, 0);
  const printed = JSON.parse(out);
  assert.equal(printed.metadata['tokenizer.ggml.tokens'].value.length, 6144);
  assert.equal(printed.tensors.length, 97);
  assert.equal(printed.model.spec.layers.length, 5);
  assert.equal(printed.tokenizer.tokens, 6144);
  assert.equal(printed.runs, true);
});

test('inspect shows a sound file that cannot run, with the reason at its end', async () => {
  for (const [name, said] of [
    ['arch-unknown', 'zzz'],
    ['pre-unknown', 'hyperbpe'],
    ['unknown-tensor', 'blk.0.attn_warp.weight'],
  ] as const) {
    const { code, out, err } = await conclave(['inspect', bad(`${name}.gguf`)]);
    assert.equal(code, 0, err);
    assert.match(out, /metadata: \d+ keys/);
    assert.match(out, /token_embd\.weight/);
    const ending = out.slice(out.indexOf('Conclave cannot run it here. refused: '));
    assert.ok(ending.startsWith('Conclave cannot run it here.') && ending.includes(said), out);
  }
});

test('inspect shows what it can of a damaged file, with exit code 1', async () => {
  const { code, out } = await conclave(['inspect', bad('merge-unknown.gguf')]);
  assert.equal(code, 1);
  assert.match(out, /metadata: \d+ keys/);
  assert.match(out, /cannot run it here\. corrupt_file: .*tokenizer\.ggml\.merges/);
});

test('plan shows bytes, kernels and context of the bundled model; --json is the plan', async () => {
  const [text, json] = await Promise.all([conclave(['plan']), conclave(['plan', '--json', '-c', '256', '-t', '1'])]);
  assert.equal(text.code, 0);
  assert.match(text.out, /^model +glm4moe, 5 layers\ndevice +cpu, \d+ threads?/);
  assert.match(text.out, /layers 1–4|layers 1, /);
  assert.match(text.out, /total +[\d.]+ MB/);
  const plan = JSON.parse(json.out);
  assert.equal(plan.context, 256);
  assert.equal(plan.threads, 1);
  assert.ok(plan.operations.length > 50 && plan.weights.length > 50);
});

test('bench prints both speeds and the share of the memory bandwidth', async () => {
  const { code, out, err } = await conclave(['bench', '-p', '32', '-n', '8', '-d', '16', '-r', '2', '--json']);
  assert.equal(code, 0, err);
  const result = JSON.parse(out);
  for (const [name, tokens] of [
    ['prefill', 32],
    ['decode', 8],
  ] as const) {
    assert.equal(result[name].tokens, tokens);
    assert.equal(result[name].runs.length, 2);
    assert.ok(
      result[name].min > 0 && result[name].min <= result[name].median && result[name].median <= result[name].max,
    );
  }
  assert.equal(result.decode.depth, 16);
  assert.ok(result.bandwidthShare > 0 && result.loadMs > 0 && result.bytesPerToken > 1e6);
  assert.ok(result.cacheBytesPerToken > 0 && result.cacheBytesPerToken < result.bytesPerToken);
});
