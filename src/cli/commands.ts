/** The commands there are: picks one, and turns whatever goes wrong into one line and an exit code. */

import { readFileSync } from 'node:fs';
import { Refusal, UsageError } from '../errors.ts';
import { nearest } from './args.ts';
import { type Context, write } from './context.ts';
import { describeError, type ExitCode, exitCodeOf } from './fail.ts';

type Command = (argv: readonly string[], context: Context) => Promise<ExitCode>;

interface CommandRow {
  readonly name: string;
  readonly about: string;
  /** Each command's code is read when it is called for. */
  load(): Promise<Command>;
}

export const commands: readonly CommandRow[] = [
  {
    name: 'start',
    about: 'answer a default question with the bundled model, and say how fast',
    load: async () => {
      const { run } = await import('./run.ts');
      return (argv, context) => run(argv, context, 'start');
    },
  },
  { name: 'run', about: 'answer a prompt, or chat', load: async () => (await import('./run.ts')).run },
  { name: 'inspect', about: 'what a model file holds', load: async () => (await import('./inspect.ts')).inspect },
  {
    name: 'plan',
    about: 'what would run where, in how many bytes',
    load: async () => (await import('./plan.ts')).plan,
  },
  { name: 'bench', about: 'prefill and decode speed', load: async () => (await import('./bench.ts')).bench },
  {
    name: 'trace',
    about: 'which experts every token of prompts and answers used, into a folder',
    load: async () => (await import('./trace.ts')).trace,
  },
  {
    name: 'replay',
    about: 'expert cache policies over a routing trace, without a model',
    load: async () => (await import('./replay.ts')).replay,
  },
];

export function help(): string {
  const width = Math.max(...commands.map(({ name }) => name.length));
  return `conclave ${version()} runs open-weight mixture-of-experts language models.

  conclave <command> [flags]

${commands.map(({ name, about }) => `  ${name.padEnd(width)}  ${about}`).join('\n')}

  conclave <command> --help lists the flags of a command; conclave --version prints the version.

Exit codes: 0 done, 1 failed, 2 a bad flag or argument, 130 interrupted.
`;
}

function version(): string {
  // Two folders up lies the package, from src/cli and from dist/cli alike.
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { version: string }).version;
}

/** Runs one command line. Everything that is thrown ends here. */
export async function main(argv: readonly string[], context: Context): Promise<ExitCode> {
  try {
    checkNode(process.versions.node);
    return await dispatch(argv, context);
  } catch (error) {
    const code = exitCodeOf(error);
    if (code !== 130) await write(context.stderr, `${describeError(error, argv.includes('--verbose'))}\n`);
    return code;
  }
}

/** The oldest Node that what is published runs on, as package.json states it. */
const LEAST_NODE = 22;

/** @throws Refusal `refused` for an older Node, which would fail at something that it does not have */
export function checkNode(version: string): void {
  if (Number.parseInt(version, 10) >= LEAST_NODE) return;
  throw new Refusal(`found Node ${version}; Conclave needs Node ${LEAST_NODE} or later: install a current one`);
}

async function dispatch(argv: readonly string[], context: Context): Promise<ExitCode> {
  const [name, ...rest] = argv;
  if (name === undefined || name === '--help' || name === '-h') {
    await write(context.stdout, help());
    return 0;
  }
  if (name === '--version' || name === '-V') {
    await write(context.stdout, `${version()}\n`);
    return 0;
  }
  if (name === 'help') return dispatch(rest.length === 0 ? [] : [rest[0]!, '--help'], context);
  if (name.startsWith('-')) {
    throw new UsageError(`a command comes first, found ${name}; try conclave run ${argv.join(' ')}`);
  }
  const command = commands.find((row) => row.name === name);
  if (command === undefined) {
    const near = nearest(
      name,
      commands.map((row) => row.name),
    );
    const hint =
      near === undefined ? `there are ${commands.map((row) => row.name).join(', ')}` : `did you mean ${near}?`;
    throw new UsageError(`unknown command ${JSON.stringify(name)}; ${hint}`);
  }
  return (await command.load())(rest, context);
}
