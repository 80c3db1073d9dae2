/**
 * The same GGUF through Conclave and through llama.cpp (node-llama-cpp's prebuilt CPU binary), with the same threads,
 * context and batch, alternating, each measurement in a process of its own. Prints medians and ratios.
 */

import { execFileSync, spawn } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { availableParallelism, cpus, loadavg } from 'node:os';
import { basename, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { type EngineName, type Figures, type Job, median } from './measure.ts';
import { type Comparison, table } from './table.ts';

const usage = `node bench/peers/main.ts -m A.gguf [-m B.gguf …] [-t THREADS] [-c CONTEXT] [-b BATCH] [--rounds N] [--repeats N] [--json]

Needs \`npm ci\` in bench/peers and a built package (\`npm run build\`; \`npm run bench:peers -- …\` does that first).`;

function fail(message: string): never {
  console.error(`bench/peers: ${message}`);
  process.exit(2);
}

function whole(name: string, text: string | undefined, standard: number): number {
  const value = text === undefined ? standard : Number(text);
  if (!Number.isSafeInteger(value) || value < 1) fail(`--${name} takes a whole number from 1 on, found ${text}`);
  return value;
}

interface Settings {
  readonly models: readonly string[];
  readonly threads: number;
  readonly context: number;
  readonly batch: number;
  readonly rounds: number;
  readonly repeats: number;
  readonly json: boolean;
}

function settings(): Settings {
  let values: ReturnType<typeof parse>;
  try {
    values = parse();
  } catch (error) {
    return fail(`${(error as Error).message}\n${usage}`);
  }
  if (values.help) {
    console.log(usage);
    process.exit(0);
  }
  const models = (values.model ?? []).map((path) => resolve(path));
  if (models.length === 0) fail(`no model was named\n${usage}`);
  for (const path of models) if (!existsSync(path)) fail(`there is no ${path}`);
  return {
    models,
    threads: whole('threads', values.threads, availableParallelism()),
    context: whole('ctx-size', values['ctx-size'], 1024),
    batch: whole('batch-size', values['batch-size'], 512),
    rounds: whole('rounds', values.rounds, 5),
    repeats: whole('repeats', values.repeats, 3),
    json: values.json ?? false,
  };
}

function parse() {
  return parseArgs({
    options: {
      model: { type: 'string', short: 'm', multiple: true },
      threads: { type: 'string', short: 't' },
      'ctx-size': { type: 'string', short: 'c' },
      'batch-size': { type: 'string', short: 'b' },
      rounds: { type: 'string' },
      repeats: { type: 'string' },
      json: { type: 'boolean' },
      help: { type: 'boolean', short: 'h' },
    },
  }).values;
}

const children: Readonly<Record<EngineName, string>> = { conclave: 'conclave.ts', 'llama.cpp': 'llama.ts' };

/** One measurement in a process of its own. */
function runOnce(engine: EngineName, job: Job): Promise<Figures> {
  const entry = fileURLToPath(new URL(children[engine], import.meta.url));
  return new Promise((done, failed) => {
    const child = spawn(process.execPath, [entry, JSON.stringify(job)], { stdio: ['ignore', 'pipe', 'inherit'] });
    let output = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
    child.on('error', failed);
    child.on('close', (code, signal) => {
      const last = output.trimEnd().split('\n').at(-1) ?? '';
      if (code === 0 && last.startsWith('{')) done(JSON.parse(last) as Figures);
      else
        failed(
          new Error(
            `the ${engine} child ended with ${signal ?? code} on ${job.model}; it printed: ${output.trim() || 'nothing'}`,
          ),
        );
    });
  });
}

/** Reads the file once, so that neither side pays for a cold disk. */
function warm(path: string): void {
  if (statSync(path).size < 2 ** 31) readFileSync(path);
  else execFileSync('cat', [path], { stdio: ['ignore', 'ignore', 'inherit'] });
}

function medians(runs: readonly Figures[]): Figures {
  const of = (name: Exclude<keyof Figures, 'greedy'>) => median(runs.map((run) => run[name]));
  return {
    loadMs: of('loadMs'),
    firstTokenMs: of('firstTokenMs'),
    prefill128TokensPerSecond: of('prefill128TokensPerSecond'),
    prefill512TokensPerSecond: of('prefill512TokensPerSecond'),
    decodeTokensPerSecond: of('decodeTokensPerSecond'),
    peakBytes: of('peakBytes'),
    greedy: runs.at(-1)?.greedy ?? [],
  };
}

async function vocabularyOf(path: string): Promise<number> {
  const { planModel } = (await import(
    new URL('../../dist/index.js', import.meta.url).href
  )) as typeof import('../../src/index.ts');
  const { info } = await planModel(path, {});
  return info.vocabulary;
}

async function compare(model: string, { threads, context, batch, rounds, repeats }: Settings): Promise<Comparison> {
  const job: Job = { model, threads, context, batch, repeats, vocabulary: await vocabularyOf(model) };
  warm(model);
  const conclave: Figures[] = [];
  const llama: Figures[] = [];
  for (let round = 0; round < rounds; round++) {
    // Who goes first changes from round to round: a machine that slows down or warms up favours nobody.
    const order: readonly EngineName[] = round % 2 === 0 ? ['conclave', 'llama.cpp'] : ['llama.cpp', 'conclave'];
    for (const engine of order) {
      const figures = await runOnce(engine, job);
      (engine === 'conclave' ? conclave : llama).push(figures);
      console.error(
        `${basename(model)} round ${round + 1}/${rounds} ${engine}: prefill 512 ${figures.prefill512TokensPerSecond.toFixed(0)}, ` +
          `decode ${figures.decodeTokensPerSecond.toFixed(1)} tokens/s`,
      );
    }
  }
  const made = { conclave: medians(conclave), llama: medians(llama) };
  const parting = made.conclave.greedy.findIndex((token, index) => token !== made.llama.greedy[index]);
  return {
    model: basename(model),
    bytes: statSync(model).size,
    ...made,
    sameTokens: parting === -1 ? made.conclave.greedy.length : parting,
    rounds: { conclave, llama },
  };
}

function commit(): string {
  try {
    const git = (...args: string[]) => execFileSync('git', args, { cwd: import.meta.dirname, encoding: 'utf8' }).trim();
    return (
      git('rev-parse', '--short', 'HEAD') +
      (git('status', '--porcelain', '--', '../../src') === '' ? '' : ' with changes')
    );
  } catch {
    return 'unknown';
  }
}

function peerVersion(): string {
  const path = new URL('node_modules/node-llama-cpp/package.json', import.meta.url);
  if (!existsSync(path)) fail('node-llama-cpp is not installed: run `npm ci` in bench/peers');
  const { version } = JSON.parse(readFileSync(path, 'utf8')) as { version: string };
  return version;
}

if (!existsSync(new URL('../../dist/index.js', import.meta.url))) fail('the package is not built: run `npm run build`');
const chosen = settings();
const machine = {
  cpu: cpus()[0]?.model.trim() ?? 'unknown CPU',
  cores: availableParallelism(),
  node: process.version,
  commit: commit(),
  peer: `node-llama-cpp ${peerVersion()}`,
  date: new Date().toISOString().slice(0, 10),
};
const busy = loadavg()[0] ?? 0;
if (busy > 0.5) {
  console.error(
    `bench/peers: the machine is busy (load ${busy.toFixed(1)}); figures and ratios mean little until it idles`,
  );
}
const comparisons: Comparison[] = [];
for (const model of chosen.models) comparisons.push(await compare(model, chosen));
if (chosen.json) console.log(JSON.stringify({ machine, settings: chosen, comparisons }, null, 2));
else console.log(table(comparisons, machine, chosen));
