/**
 * `conclave inspect`: what a model file holds. What can be read is printed even if the file cannot run; why it cannot is
 * said at the end.
 */

import { ConclaveError, UsageError } from '../errors.ts';
import type { ModelFile } from '../format/model-file.ts';
import { openModelFile } from '../format/open.ts';
import { readModel } from '../model/read-model.ts';
import { nodePlatform } from '../platform/node.ts';
import { tokenizerOf } from '../tokenizer/index.ts';
import { describeFlags, parseFlags, refusePositional } from './args.ts';
import { bundledModel, type Context, write } from './context.ts';
import type { ExitCode } from './fail.ts';
import { inspectFlags } from './flags.ts';
import { toJson } from './format.ts';
import { describeInspection, type Inspection, type Part } from './inspect-text.ts';

export const inspectHelp = `Show what a model file holds: header, metadata, tensors, tokenizer, model.

  conclave inspect model.gguf
  conclave inspect -m model.gguf --json
  conclave inspect a-safetensors-folder

A sound file that Conclave cannot run is shown all the same, with the reason at the end and exit code 0. A damaged one
is shown as far as it can be read, with exit code 1.

${describeFlags(inspectFlags)}
`;

/** @throws UsageError `usage`; SourceError `source` and CorruptFileError `corrupt_file` where no header can be read. */
export async function inspect(argv: readonly string[], context: Context): Promise<ExitCode> {
  const { values, positionals } = parseFlags(inspectFlags, argv);
  if (values.help === true) {
    await write(context.stdout, inspectHelp);
    return 0;
  }
  if (positionals.length > 0 && values.model !== undefined) {
    throw new UsageError(`give one file, found -m ${values.model} and ${positionals[0]}`);
  }
  const [path = values.model ?? bundledModel, ...more] = positionals;
  refusePositional(more);

  const source = await nodePlatform.openSource(path);
  let inspection: Inspection;
  try {
    // Formats that cannot be computed with are let through: to look at them is what this is for.
    const file = await openModelFile(source, { keepUnsupported: true });
    try {
      inspection = read(file, values['ignore-key'], await verdict(path, values['ignore-key'], context));
    } finally {
      await file.close();
    }
  } catch (error) {
    await source.file.close();
    throw error;
  }
  await write(context.stdout, values.json === true ? `${toJson(inspection)}\n` : describeInspection(inspection));
  return inspection.damaged ? 1 : 0;
}

/** Whether the file runs here: what the planner says, which is who decides. */
async function verdict(
  path: string,
  ignoreKeys: readonly string[] | undefined,
  context: Context,
): Promise<ConclaveError | undefined> {
  const { planModel } = await context.library();
  return faultOf(() => planModel(path, { ignoreKeys: ignoreKeys ?? [] }));
}

function read(
  file: ModelFile,
  ignoreKeys: readonly string[] | undefined,
  fault: ConclaveError | undefined,
): Inspection {
  const tensors = [...file.tensors.values()];
  const formats = new Map<string, { format: string; tensors: number; values: number; bytes: number }>();
  for (const { format, shape, bytes } of tensors) {
    const total = formats.get(format) ?? { format, tensors: 0, values: 0, bytes: 0 };
    formats.set(format, {
      format,
      tensors: total.tensors + 1,
      values: total.values + shape.reduce((a, b) => a * b, 1),
      bytes: total.bytes + bytes,
    });
  }
  const model = part(() => {
    const { spec, ignored } = readModel(file, { ignoreKeys });
    return { spec, ignored };
  });
  // A folder's vocabulary is as large as its model's embedding, and is not read without it.
  const vocabulary = file.container === 'gguf' ? 0 : model.value?.spec.vocabulary;
  const tokenizer = vocabulary === undefined ? {} : part(() => tokenizerOf(file, vocabulary).summary());
  const faults = [fault, tokenizer.fault, model.fault].filter((each) => each !== undefined);
  return {
    file: file.name,
    container: file.container,
    version: file.version,
    sources: file.sources.map(({ name, size }) => ({ name, bytes: size })),
    metadata: Object.fromEntries(file.metadata),
    config: file.folder?.config,
    tensors,
    formats: [...formats.values()].sort((a, b) => b.bytes - a.bytes),
    tokenizer: tokenizer.value,
    model: model.value,
    // The planner meets most faults too: each is told once.
    faults: [
      ...new Map(
        faults.map((each) => [each.message, { code: each.code, message: each.message, data: each.data }]),
      ).values(),
    ],
    runs: faults.length === 0,
    damaged: faults.some(({ code }) => code === 'corrupt_file'),
  };
}

function part<Value>(make: () => Value): Part<Value> {
  try {
    return { value: make() };
  } catch (error) {
    if (error instanceof ConclaveError) return { fault: error };
    throw error;
  }
}

async function faultOf(act: () => Promise<unknown>): Promise<ConclaveError | undefined> {
  try {
    await act();
    return undefined;
  } catch (error) {
    if (error instanceof ConclaveError) return error;
    throw error;
  }
}
