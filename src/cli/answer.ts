/** What every command that generates shares: loading with a bar, the stream of an answer, and the line of figures after it. */

import { styleText } from 'node:util';
import type { Model, Part } from '../engine/types.ts';
import { InternalError } from '../errors.ts';
import { type Context, write } from './context.ts';
import { printable, showPlural, showRate } from './format.ts';
import { loadOptions, type MoreOptions, modelNameOf, modelOf, type PlanValues } from './options.ts';
import { startProgress } from './progress.ts';

/** Loads with a bar on a terminal. */
export async function loadModel(
  values: PlanValues & { readonly model?: string; readonly synthetic?: string; readonly json?: boolean },
  context: Context,
  more: MoreOptions & { readonly signal: AbortSignal },
): Promise<Model> {
  // What is wrong with the flags is said before anything is loaded.
  const options = await loadOptions(values, more);
  const { load } = await context.library();
  const progress = startProgress(context.stderr);
  let loaded = false;
  try {
    const onProgress = ({ bytesDone, bytesTotal }: { readonly bytesDone: number; readonly bytesTotal: number }) =>
      progress.update({ done: bytesDone, total: bytesTotal });
    const onFault = ({ message }: Error) => void write(context.stderr, `conclave: ${printable(message)}\n`);
    const model = await load(modelOf(values), { ...options, onProgress, onFault });
    loaded = true;
    const { context: length, contextReason, device, deviceReason } = model.plan;
    if (deviceReason !== undefined) {
      await write(context.stderr, `conclave: runs on the ${device.toUpperCase()}: ${printable(deviceReason)}\n`);
    }
    if (contextReason.includes('beyond')) {
      await write(context.stderr, `conclave: a context of ${length} tokens, ${contextReason}: answers may get worse\n`);
    }
    return model;
  } finally {
    progress.finish(loaded && values.json !== true ? modelNameOf(values) : undefined);
  }
}

export type Finish = Extract<Part, { type: 'finish' }>;

/** Runs a generation to its end, handing each piece of text on as it comes. */
export async function collect(
  parts: AsyncIterable<Part>,
  onText?: (text: string) => Promise<void>,
): Promise<{ readonly finish: Finish }> {
  for await (const part of parts) {
    if (part.type === 'finish') return { finish: part };
    await onText?.(part.text);
  }
  throw new InternalError('a generation ended without saying why');
}

/** A terminal gets text without control characters; a pipe or a file gets exactly what the model wrote. */
export function writeText(text: string, context: Context): Promise<void> {
  return write(context.stdout, context.stdout.isTTY === true ? printable(text) : text);
}

/** `prefill 12 tokens, 350 tokens/s · decode 14 tokens, 120 tokens/s`. */
export function describeUsage({ reason, usage }: Pick<Finish, 'reason' | 'usage'>): string {
  const { promptTokens, cachedTokens, completionTokens, prefillTokensPerSecond, decodeTokensPerSecond } = usage;
  const cached = cachedTokens > 0 ? ` (${showPlural(cachedTokens, 'more', 'more')} from the cache)` : '';
  return [
    `prefill ${showPlural(promptTokens - cachedTokens, 'token')}${cached}, ${showRate(prefillTokensPerSecond, 'tokens')}`,
    `decode ${showPlural(completionTokens, 'token')}, ${showRate(decodeTokensPerSecond, 'tokens')}`,
    ...(reason === 'length' ? ['stopped at the length limit'] : []),
  ].join(' · ');
}

/** Quieter than the answer, where the terminal can. */
export function dim(text: string, context: Context): string {
  return context.stderr.isTTY === true
    ? styleText('dim', text, { stream: context.stderr as NodeJS.WriteStream })
    : text;
}
