/** `conclave plan`: what would run where, with which kernels, in how many bytes, without loading a weight. */

import { explain } from '../plan/explain.ts';
import { describeFlags, parseFlags, refusePositional } from './args.ts';
import { type Context, write } from './context.ts';
import type { ExitCode } from './fail.ts';
import { planFlags, shapeLines } from './flags.ts';
import { printable, toJson } from './format.ts';
import { modelOf, planOptions } from './options.ts';

export const planHelp = `Show what would run where, with which kernels, in how many bytes. No weight is loaded.

  conclave plan -m model.gguf -c 4096

A model that cannot run is refused with every reason, and the exit code is 1.

${describeFlags(planFlags)}

${shapeLines}
`;

/** @throws UsageError `usage`; Refusal `refused` with every reason; what reading the file throws. */
export async function plan(argv: readonly string[], context: Context): Promise<ExitCode> {
  const { values, positionals } = parseFlags(planFlags, argv);
  if (values.help === true) {
    await write(context.stdout, planHelp);
    return 0;
  }
  const [path, ...more] = positionals;
  refusePositional(values.model === undefined ? more : positionals);
  const { planModel } = await context.library();
  const { plan: made } = await planModel(modelOf({ model: path, ...values }), await planOptions(values));
  await write(context.stdout, values.json === true ? `${toJson(made)}\n` : `${printable(explain(made))}\n`);
  return 0;
}
