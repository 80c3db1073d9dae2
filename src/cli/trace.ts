/** `conclave trace`: runs prompts and records which experts every token used, for `replay`, `bench --routing` and `--expert-uses`. */

import type { GenerateOptions, Model, Prompt } from '../engine/types.ts';
import { UsageError } from '../errors.ts';
import { IDS_FILE, SHAPE_FILE, type TraceShape } from '../experts/trace.ts';
import type { TraceWriter } from '../experts/trace-writer.ts';
import { formatBytes } from '../quant/index.ts';
import { collect, dim, type Finish, loadModel } from './answer.ts';
import { describeFlags, type ParsedArguments, parseFlags, refusePositional } from './args.ts';
import { type Context, write } from './context.ts';
import { type ExitCode, Interrupted } from './fail.ts';
import { traceFlags } from './flags.ts';
import { printableName, showBytes, showCount, showPlural, toJson } from './format.ts';
import { generateOptions } from './options.ts';
import { readPromptFile, readPromptStream } from './prompt.ts';
import { messages } from './run.ts';
import { createTraceFolder, type TraceFolder } from './trace-folder.ts';

export const traceHelp = `Run prompts and record which experts every token used, layer by layer, into a folder: ${SHAPE_FILE} and ${IDS_FILE}.

  conclave trace -m model.gguf -p "Why is the sky blue?" -n 200 -o traces/sky
  conclave trace -m model.gguf -f prompts.txt -n 500 -o traces/mine
  conclave replay traces/mine

Each prompt is run by itself, and its tokens stand in the trace in the order in which they were run:
those of the prompt, then those of the answer but for the last one, which is drawn and not run. Works on
the CPU, on the reference, and where experts are split (--expert-cache, --cpu-moe); a GPU that has all
experts tells nobody which it chooses.

${describeFlags(traceFlags)}
`;

type TraceValues = ParsedArguments<typeof traceFlags>['values'];

/** @throws UsageError `usage`; Refusal `refused` for a model that cannot be recorded; what loading and generating throw */
export async function trace(argv: readonly string[], context: Context): Promise<ExitCode> {
  const { values, positionals } = parseFlags(traceFlags, argv);
  if (values.help === true) {
    await write(context.stdout, traceHelp);
    return 0;
  }
  refusePositional(positionals);
  const { output } = values;
  if (output === undefined) throw new UsageError('give the folder that the trace goes to, as in -o traces/mine');
  const texts = await promptTexts(values, context);
  const controller = new AbortController();
  const release = context.onInterrupt(() => {
    if (controller.signal.aborted) context.exit(130);
    controller.abort(new Interrupted());
  });
  const { signal } = controller;
  let folder: TraceFolder | undefined;
  let model: Model | undefined;
  try {
    const options = generateOptions(values, signal);
    folder = await createTraceFolder(output);
    model = await loadModel(values, context, { signal, recordRouting: true });
    const prompts = texts.map((text): Prompt => (values.raw === true ? { text } : messages(values.system, text)));
    const writer = await record(model, { folder, prompts, options, controller }, async (index, { usage }) => {
      const { promptTokens, completionTokens } = usage;
      const tokens = `${showPlural(promptTokens, 'token')}, answer of ${showPlural(completionTokens, 'token')}`;
      const line = `prompt ${showCount(index + 1)} of ${showCount(texts.length)}: ${tokens}`;
      if (values.json !== true) await write(context.stderr, `${dim(line, context)}\n`);
    });
    const { tokens, shape } = writer;
    await folder.finish(writer);
    folder = undefined;
    const said = { path: output, prompts: texts.length, tokens, ...shape };
    await write(context.stdout, values.json === true ? `${toJson(said)}\n` : describeTrace(said));
    return 0;
  } finally {
    release();
    await model?.dispose();
    await folder?.discard();
  }
}

interface Recorded {
  readonly folder: TraceFolder;
  readonly prompts: readonly Prompt[];
  readonly options: GenerateOptions;
  /** Aborted when the folder takes no more. */
  readonly controller: AbortController;
}

/** Generates after each prompt in turn, each in a session of its own, so that every row of it is run. */
async function record(
  model: Model,
  { folder, prompts, options, controller }: Recorded,
  onPrompt: (index: number, finish: Finish) => Promise<void>,
): Promise<TraceWriter> {
  let writer: TraceWriter | undefined;
  const recording = await model.recordRouting(async ({ ids }) => {
    try {
      await writer?.add(ids);
    } catch (error) {
      controller.abort(error);
      throw error;
    }
  });
  writer = folder.writer({ ...recording.shape, model: model.info.name, expertBytes: expertBytes(model) });
  try {
    for (const [index, prompt] of prompts.entries()) {
      const session = model.session();
      const { finish } = await collect(session.generate(prompt, options))
        .catch((error) => {
          throw prompts.length > 1 ? ofPrompt(index, prompts.length, error) : error;
        })
        .finally(() => session.dispose());
      await onPrompt(index, finish);
    }
  } catch (error) {
    await recording.stop().catch(() => {});
    throw error;
  }
  await recording.stop();
  return writer;
}

/** What is wrong with a prompt, of several, with the number of it. */
function ofPrompt(index: number, prompts: number, error: unknown): unknown {
  if (!(error instanceof UsageError)) return error;
  const { message, data } = error;
  return new UsageError(`prompt ${showCount(index + 1)} of ${showCount(prompts)}: ${message}`, { data, cause: error });
}

/** Of one expert's weights as a file has them, wherever they lie and however; the mean of all, nothing where there are none. */
function expertBytes({ plan }: Model): number | undefined {
  const stacks = new Map(
    plan.weights
      .filter(({ name }) => /^layers\.\d+\.moe\.(gate|up|down)$/.test(name))
      .map((stack) => [stack.name, stack]),
  );
  let [parts, bytes] = [0, 0];
  for (const { format, shape } of stacks.values()) {
    parts += shape[0] as number;
    bytes += formatBytes(
      format,
      shape.reduce((values, length) => values * length, 1),
    );
  }
  return parts === 0 ? undefined : Math.round((3 * bytes) / parts);
}

function describeTrace(trace: TraceShape & { readonly path: string; readonly prompts: number }): string {
  const { path, prompts, tokens, layers, experts, used, expertBytes: bytes } = trace;
  const each = bytes === undefined ? '' : `, ${showBytes(bytes)} each`;
  return (
    `${printableName(path)}: ${showPlural(tokens, 'token')} of ${showPlural(prompts, 'prompt')}, ${showPlural(layers, 'layer')}, ` +
    `${showCount(used)} of ${showPlural(experts, 'expert')} a layer${each}\n`
  );
}

/** @throws UsageError `usage` where there is none */
async function promptTexts(values: TraceValues, context: Context): Promise<readonly string[]> {
  const { prompt, file } = values;
  if (prompt !== undefined && file !== undefined) {
    throw new UsageError('--prompt and --file cannot be used together; give one of them');
  }
  if (values.raw === true && values.system !== undefined) {
    throw new UsageError('--raw and --system cannot be used together; give one of them');
  }
  if (prompt !== undefined) return [prompt];
  if (file === undefined) throw new UsageError('give a prompt with -p, or a file of prompts, one a line, with -f');
  const text = file === '-' ? await readPromptStream(context.stdin) : await readPromptFile(file);
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== '');
  if (lines.length === 0)
    throw new UsageError(`${file === '-' ? 'standard input' : file} has no prompt in it; one a line is expected`);
  return lines;
}
