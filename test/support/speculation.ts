/** A model below the engine's worker, decoding many prompts at once, with drafts or without, always or while they pay. */

import type { SamplerSettings } from '../../src/backend/sampling.ts';
import { MtpDrafts } from '../../src/engine/speculate/mtp.ts';
import type { DraftSource } from '../../src/engine/speculate/source.ts';
import { Speculator } from '../../src/engine/speculate/speculator.ts';
import type { SpeculationSnapshot } from '../../src/engine/speculate/stats.ts';
import { openModelFile } from '../../src/format/open.ts';
import { readTokenizer } from '../../src/tokenizer/index.ts';
import type { DeviceModel } from './device.ts';
import { nodeModelSource } from './node-source.ts';
import { SchedulerBench } from './scheduler-bench.ts';

/** Words that the lexicon models have learned something of. */
const words =
  'glacier harbor justice river oak dog cat computer piano music lamp bridge castle desert engine forest garden hammer ' +
  'island jacket kettle ladder mirror needle ocean pencil queen rabbit saddle table umbrella valley window yard zebra ' +
  'anchor basket candle doctor eagle feather guitar hill iron journey key lemon mountain nest orange';

/** Fifty questions in the chat template of the lexicon models, as token ids. */
export async function fiftyPrompts(path: string): Promise<readonly (readonly number[])[]> {
  const file = await openModelFile(await nodeModelSource(path));
  await file.close();
  const tokenizer = readTokenizer(file.metadata, file.name);
  return words.split(' ').map((word, index) => {
    const question = index % 2 === 0 ? `What is a ${word}?` : `Use ${word} in a sentence.`;
    const text = `<|im_start|>user\n${question}<|im_end|>\n<|im_start|>assistant\n`;
    return tokenizer.encode(text, { special: true });
  });
}

export const greedily: SamplerSettings = {
  temperature: 0,
  topK: 0,
  topP: 1,
  minP: 0,
  repeatPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  penaltyWindow: 64,
  logitBias: [],
  seed: 0,
};

export interface Decoded {
  /** By prompt. */
  readonly answers: readonly (readonly number[])[];
  /** Absent where nothing drafts. */
  readonly stats?: SpeculationSnapshot;
}

/** Drafts by the model's own head. */
export function mtpOf({ executable, spec, plan }: DeviceModel, promptRows = plan.maxRows.prompt): DraftSource {
  const { mtp: runner } = executable;
  if (runner === undefined) throw new Error('nothing predicts ahead');
  const { vocabulary } = spec;
  return new MtpDrafts({ runner, vocabulary, stepRows: plan.maxRows.step, promptRows });
}

/**
 * Answers of so many tokens to all prompts, some at once; prompt i draws with seed i.
 * @param asked.promptRows rows of a chunk of a prompt
 */
export async function decode(
  model: DeviceModel,
  prompts: readonly (readonly number[])[],
  asked: {
    readonly maxTokens: number;
    readonly sampling?: Partial<SamplerSettings>;
    readonly source?: DraftSource;
    readonly drafts?: number;
    readonly gated?: boolean;
    readonly promptRows?: number;
    readonly atOnce?: number;
  },
): Promise<Decoded> {
  const { maxTokens, sampling, source, drafts = 2, gated = false, atOnce = 5 } = asked;
  const { executable, plan, spec } = model;
  const speculator = source && new Speculator({ source, drafts, gated, onFault: (error) => Promise.reject(error) });
  const bench = new SchedulerBench(executable, {
    context: plan.context,
    promptRows: asked.promptRows ?? plan.maxRows.prompt,
    vocabulary: spec.vocabulary,
    pages: plan.cache.pages,
    speculator,
    ...(gated ? { now: () => performance.now() } : {}),
  });
  for (let first = 0; first < prompts.length; first += atOnce) {
    const requests = prompts
      .slice(first, first + atOnce)
      .map((prompt, index) =>
        bench.add(first + index, prompt, { maxTokens, sampling: { ...greedily, seed: first + index, ...sampling } }),
      );
    await bench.drain();
    for (const { timeline } of requests) timeline.rewind(0);
  }
  for (const [id, how] of bench.ends) if (how instanceof Error) throw new Error(`request ${id}`, { cause: how });
  const answers = prompts.map((_, id) => bench.tokens.get(id) ?? []);
  return { answers, ...(speculator === undefined ? {} : { stats: speculator.snapshot({ reset: false }) }) };
}
