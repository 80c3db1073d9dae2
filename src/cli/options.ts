/**
 * From flags to the library's options. What the library can check is left to it, but asked for before anything is loaded;
 * what only a flag can get wrong is here.
 */

import { basename } from 'node:path';
import { checkGenerateOptions } from '../engine/options.ts';
import type { GenerateOptions, LoadOptions } from '../engine/types.ts';
import { UsageError } from '../errors.ts';
import type { SourceInput } from '../format/source.ts';
import type { DeviceOption, PlanOptions } from '../plan/plan.ts';
import { parseSpeculation } from '../plan/speculation.ts';
import { syntheticModel } from '../synthetic/source.ts';
import type { ParsedArguments } from './args.ts';
import { bundledModel } from './context.ts';
import type { planFlags, runFlags } from './flags.ts';
import { printableName } from './format.ts';
import { readUses } from './trace-input.ts';

export type PlanValues = Omit<
  ParsedArguments<typeof planFlags>['values'],
  'model' | 'synthetic' | 'json' | 'verbose' | 'help'
>;
type GenerateValues = Omit<ParsedArguments<typeof runFlags>['values'], 'chat' | 'expert-stats' | 'spec-stats'>;

/**
 * What `plan`, `run`, `trace` and `bench` ask of the plan.
 * @throws UsageError `usage`; SourceError `source` and CorruptFileError `corrupt_file` for a trace that is none
 */
export async function planOptions(values: PlanValues): Promise<PlanOptions> {
  const layers = values['gpu-layers'];
  const uses = values['expert-uses'];
  return given({
    device: values.device as DeviceOption | undefined,
    gpuLayers: layers === undefined || layers === 'auto' ? layers : Number(layers),
    gpuMemoryBytes: values['gpu-memory'],
    gpuChecks: values['gpu-checks'],
    expertCache: values['expert-cache'],
    cpuMoe: cpuMoe(values),
    expertPrefetch: values['expert-prefetch'],
    expertPin: values['expert-pin'],
    expertUses: uses === undefined ? undefined : await readUses(uses),
    threads: values.threads,
    context: values['ctx-size'],
    batch: values['batch-size'],
    cache: values.kv,
    arenaBytes: values['arena-bytes'],
    ignoreKeys: values['ignore-key'],
    memoryBytes: values.memory,
    speculation: values.spec === undefined ? undefined : parseSpeculation(values.spec),
  });
}

/** @throws UsageError `usage` when both flags are given */
function cpuMoe(values: PlanValues): true | number | undefined {
  const [all, first] = [values['cpu-moe'], values['n-cpu-moe']];
  if (all === true && first !== undefined) {
    throw new UsageError(
      '--cpu-moe leaves all experts to the CPU, --n-cpu-moe those of some layers: leave one of them out',
    );
  }
  return all === true ? true : first;
}

/** What is asked of a model beside its plan. */
export type MoreOptions = Pick<
  LoadOptions,
  'onFault' | 'onProgress' | 'signal' | 'expertStats' | 'recordRouting' | 'routing'
>;

/** @throws as {@link planOptions} */
export async function loadOptions(values: PlanValues, more: MoreOptions): Promise<LoadOptions> {
  return given({ ...(await planOptions(values)), ...more });
}

/** @throws UsageError `usage` for a value that the library would refuse, and a logit bias that does not read `ID±X`. */
export function generateOptions(values: GenerateValues, signal: AbortSignal): GenerateOptions {
  const { predict, seed } = values;
  const kwargs = {
    ...(values['no-think'] === true ? { enable_thinking: false } : {}),
    ...values['chat-template-kwargs'],
  };
  const options: GenerateOptions = given({
    maxTokens: predict === undefined || predict < 0 ? undefined : predict,
    stop: values.stop,
    temperature: values.temp,
    topK: values['top-k'],
    topP: values['top-p'],
    minP: values['min-p'],
    repeatPenalty: values['repeat-penalty'],
    penaltyWindow: values['repeat-last-n'],
    presencePenalty: values['presence-penalty'],
    frequencyPenalty: values['frequency-penalty'],
    logitBias: values['logit-bias'] === undefined ? undefined : readBiases(values['logit-bias']),
    seed: seed === undefined || seed < 0 ? undefined : seed,
    chatTemplateKwargs: Object.keys(kwargs).length > 0 ? kwargs : undefined,
    signal,
  });
  // A typing error should not cost a load.
  checkGenerateOptions(options);
  return options;
}

/** Without the options that nobody gave, so that the library sees only what was said. */
function given<Options extends object>(options: Options): Options {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as Options;
}

function readBiases(texts: readonly string[]): Record<number, number> {
  const biases: Record<number, number> = {};
  for (const text of texts) {
    const match = /^(\d{1,10})([+-](?:\d+\.?\d*|\.\d+|inf))$/i.exec(text);
    if (match === null) {
      throw new UsageError(
        `--logit-bias expects a token id, a sign and a number, such as 15043+1.5 or 15043-inf, found ${JSON.stringify(text)}`,
      );
    }
    const [, id, bias] = match as unknown as [string, string, string];
    biases[Number(id)] = /inf/i.test(bias) ? Number(`${bias[0]}Infinity`) : Number(bias);
  }
  return biases;
}

/** What a command loads: a shape of random weights, a file, or the bundled model. @throws UsageError `usage` */
export function modelOf(values: { readonly model?: string; readonly synthetic?: string }): SourceInput {
  const { model, synthetic } = values;
  if (synthetic === undefined) return model ?? bundledModel;
  if (model !== undefined) throw new UsageError('--synthetic stands in for a model: leave --model out');
  return syntheticModel(synthetic);
}

/** How it is called where results are shown. */
export function modelNameOf(values: { readonly model?: string; readonly synthetic?: string }): string {
  return printableName(
    values.synthetic === undefined ? basename(values.model ?? bundledModel) : `synthetic ${values.synthetic}`,
  );
}
