/** `conclave run` and `conclave start`: one prompt answered as a stream, or a chat. */

import type { ChatMessage, Model, Prompt } from '../engine/types.ts';
import { UsageError } from '../errors.ts';
import { collect, describeUsage, dim, loadModel, writeText } from './answer.ts';
import { describeFlags, type FlagTable, type ParsedArguments, parseFlags, refusePositional } from './args.ts';
import { chat } from './chat.ts';
import { type Context, write } from './context.ts';
import { describeExpertStats } from './expert-stats-text.ts';
import { type ExitCode, Interrupted } from './fail.ts';
import { runFlags } from './flags.ts';
import { toJson } from './format.ts';
import { describeMemory } from './memory-text.ts';
import { generateOptions } from './options.ts';
import { readPromptFile, readPromptStream } from './prompt.ts';
import { describeSpeculation, speculationOf } from './speculation-text.ts';

export const DEFAULT_QUESTION = 'What is a glacier?';

type RunValues = ParsedArguments<typeof runFlags>['values'];

/** The flags of `start`, which has other defaults. */
const startFlags: FlagTable = {
  ...runFlags,
  prompt: { ...runFlags.prompt, about: `what to say to the model (default: "${DEFAULT_QUESTION}")` },
  temp: { ...runFlags.temp, about: 'temperature; 0: the likeliest token (default)' },
};

export const runHelp = (name: 'run' | 'start') => `${
  name === 'run'
    ? `Answer a prompt, or chat when none is given.

  conclave run -p "${DEFAULT_QUESTION}"
  conclave run -m model.gguf -f prompt.txt -n 200 --temp 0
  conclave run -m model.gguf                 a chat: /exit, Ctrl-D or Ctrl-C twice to leave`
    : `Answer "${DEFAULT_QUESTION}" with the bundled model, always with the likeliest token (--temp 0), and say how fast
that was. Takes every flag of run.

  conclave start
  conclave start -p "What does harbor mean?"`
}

The answer goes to standard output, everything else to standard error.

${describeFlags(name === 'run' ? runFlags : startFlags)}
`;

/** @throws UsageError `usage` for bad flags; what loading and generating throw; Interrupted after Ctrl-C. */
export async function run(argv: readonly string[], context: Context, name: 'run' | 'start' = 'run'): Promise<ExitCode> {
  const { values, positionals } = parseFlags(runFlags, argv);
  if (values.help === true) {
    await write(context.stdout, runHelp(name));
    return 0;
  }
  refusePositional(positionals);
  checkTogether(values);
  const text = values.chat === true ? undefined : await promptText(values, context, name);
  if (text === undefined && (values.raw === true || values.json === true)) {
    throw new UsageError(`--${values.raw === true ? 'raw' : 'json'} needs a prompt (-p or -f); a chat has none`);
  }

  const controller = new AbortController();
  const release = context.onInterrupt(() => {
    if (controller.signal.aborted) context.exit(130);
    controller.abort(new Interrupted());
  });
  let model: Model | undefined;
  try {
    const temp = values.temp ?? (name === 'start' ? 0 : undefined);
    const options = generateOptions({ ...values, temp }, controller.signal);
    model = await loadModel(values, context, { signal: controller.signal, expertStats: values['expert-stats'] });
    if (text === undefined) {
      release();
      const code = await chat({ model, context, system: values.system, options });
      await tellStats(values, model, context);
      return code;
    }
    if (name === 'start' && values.json !== true) await write(context.stderr, `${dim(`> ${text}`, context)}\n`);
    const prompt: Prompt = values.raw === true ? { text } : messages(values.system, text);
    const session = model.session();
    const parts = session.generate(prompt, options);
    if (values.json === true) {
      const { finish } = await collect(parts);
      const { reason, tokens, usage } = finish;
      const experts = values['expert-stats'] === true ? await model.expertStats() : undefined;
      const speculation = values['spec-stats'] === true ? await speculationOf(model) : undefined;
      const gpuMemory = experts && (await model.deviceMemory());
      const counted = { experts, gpuMemory, speculation };
      const result = { model: model.info, text: finish.text, tokens, finish: reason, usage, ...counted };
      await write(context.stdout, `${toJson(result)}\n`);
      return 0;
    }
    const { finish } = await collect(parts, (piece) => writeText(piece, context));
    if (!finish.text.endsWith('\n')) await write(context.stdout, '\n');
    await write(context.stderr, `${dim(describeUsage(finish), context)}\n`);
    await tellStats(values, model, context);
    return 0;
  } finally {
    release();
    await model?.dispose();
  }
}

/** With `--spec-stats`, what drafting came to; with `--expert-stats`, what the experts did. */
async function tellStats(values: RunValues, model: Model, context: Context): Promise<void> {
  const speculation = values['spec-stats'] === true ? await speculationOf(model) : undefined;
  if (speculation !== undefined) await write(context.stderr, `\n${describeSpeculation(speculation)}`);
  const experts = values['expert-stats'] === true ? await model.expertStats() : undefined;
  if (experts === undefined) return;
  await write(context.stderr, `\n${describeExpertStats(experts)}`);
  const memory = await model.deviceMemory();
  if (memory !== undefined) await write(context.stderr, `peak memory of the GPU: ${describeMemory(memory)}\n`);
}

export function messages(system: string | undefined, user: string): readonly ChatMessage[] {
  const question = { role: 'user', content: user };
  return system === undefined ? [question] : [{ role: 'system', content: system }, question];
}

/** Flags that say two things at once. */
function checkTogether(values: RunValues): void {
  const given = (names: readonly (keyof RunValues)[]) => names.filter((name) => values[name] !== undefined);
  if (values['spec-stats'] === true && (values.spec === undefined || values.spec === 'off')) {
    throw new UsageError('--spec-stats tells of drafts, and nothing is drafted without --spec');
  }
  const rivals: readonly (readonly (keyof RunValues)[])[] = [
    ['prompt', 'file', 'chat'],
    ['raw', 'system'],
    ['raw', 'chat'],
  ];
  for (const names of rivals) {
    const found = given(names);
    if (found.length > 1) throw new UsageError(`--${found.join(' and --')} cannot be used together; give one of them`);
  }
}

/** The prompt; undefined: a chat is meant. */
async function promptText(values: RunValues, context: Context, name: 'run' | 'start'): Promise<string | undefined> {
  if (values.prompt !== undefined) return values.prompt;
  if (values.file !== undefined && values.file !== '-') return readPromptFile(values.file);
  // `start` never waits for standard input: under npm or CI it may be open and silent for ever.
  if (values.file === undefined && name === 'start') return DEFAULT_QUESTION;
  if (values.file === undefined && context.stdin.isTTY === true) return undefined;
  const text = await readPromptStream(context.stdin);
  if (text === '') throw new UsageError('standard input is empty; give a prompt with -p or -f');
  return text;
}
