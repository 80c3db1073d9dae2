/** What a model's file says of sampling: the `general.sampling.*` keys of GGUF, or a folder's `generation_config.json`. */

import { CorruptFileError } from '../errors.ts';
import type { JsonObject } from '../format/json.ts';
import type { MetadataValue, ModelFile } from '../format/model-file.ts';
import { type Check, finite, numberFrom, wholeFrom } from './check.ts';
import { repeatFactor } from './options.ts';
import type { SamplingOptions } from './types.ts';

const PREFIX = 'general.sampling.';

type NumberOption = Exclude<keyof SamplingOptions, 'logitBias'>;

interface KnownKey {
  readonly option: NumberOption;
  readonly check: Check;
  /** Writers mark "off" by numbers that our options do not take. */
  readonly read?: (value: number) => number;
}

const known: Readonly<Record<string, KnownKey>> = {
  temp: { option: 'temperature', check: finite, read: (value) => Math.max(0, value) },
  top_k: { option: 'topK', check: wholeFrom(-1), read: (value) => Math.max(0, value) },
  top_p: { option: 'topP', check: numberFrom(0, 1) },
  min_p: { option: 'minP', check: numberFrom(0, 1) },
  penalty_last_n: { option: 'penaltyWindow', check: wholeFrom(-1) },
  penalty_repeat: { option: 'repeatPenalty', check: repeatFactor },
};

export interface FileSampling {
  readonly defaults: SamplingOptions;
  /** Keys about sampling that are not followed. */
  readonly ignored: readonly { readonly name: string; readonly reason: string }[];
}

/** Names of `generation_config.json`. */
const folderKeys: Readonly<Record<string, string>> = {
  temperature: 'temp',
  top_k: 'top_k',
  top_p: 'top_p',
  min_p: 'min_p',
  repetition_penalty: 'penalty_repeat',
};
/** Names that say nothing of sampling. */
const besides: ReadonlySet<string> = new Set([
  '_from_model_config',
  'bos_token_id',
  'do_sample',
  'eos_token_id',
  'output_attentions',
  'output_hidden_states',
  'pad_token_id',
  'transformers_version',
  'use_cache',
]);

/** @throws CorruptFileError `corrupt_file` naming a key whose value cannot be meant */
export function samplingOf({ metadata, name, folder }: ModelFile): FileSampling {
  return folder === undefined
    ? readFileSampling(metadata, name)
    : folderSampling(folder.generationConfig ?? {}, folder.name);
}

/** The `general.sampling.*` keys. @throws as {@link samplingOf} */
export function readFileSampling(metadata: ReadonlyMap<string, MetadataValue>, where: string): FileSampling {
  const defaults: Partial<Record<NumberOption, number>> = {};
  const ignored: { name: string; reason: string }[] = [];
  for (const [name, { type, value }] of metadata) {
    if (!name.startsWith(PREFIX)) continue;
    const key = known[name.slice(PREFIX.length)];
    if (key === undefined) {
      ignored.push({ name, reason: 'a way of sampling that is not supported' });
      continue;
    }
    const found = type === 'array' ? 'an array' : `${JSON.stringify(String(value))} (${type})`;
    take(defaults, key, { name: `key ${name}`, value, found, where });
  }
  return { defaults, ignored };
}

/** Of `generation_config.json`; followed where it says that sampling is done (`do_sample`). @throws as {@link samplingOf} */
export function folderSampling(config: JsonObject, where: string): FileSampling {
  const defaults: Partial<Record<NumberOption, number>> = {};
  const ignored: { name: string; reason: string }[] = [];
  for (const [name, value] of Object.entries(config)) {
    if (besides.has(name) || value === null) continue;
    const key = Object.hasOwn(folderKeys, name) ? known[folderKeys[name] as string] : undefined;
    if (key === undefined) ignored.push({ name, reason: 'a way of generating that is not supported' });
    else if (config.do_sample !== true)
      ignored.push({ name, reason: 'the file does not say that it samples (do_sample)' });
    else {
      const found = JSON.stringify(value).slice(0, 60);
      take(defaults, key, { name: `${name} of generation_config.json`, value, found, where });
    }
  }
  return { defaults, ignored };
}

/** @throws CorruptFileError `corrupt_file` for a value that the option does not take */
function take(
  defaults: Partial<Record<NumberOption, number>>,
  key: KnownKey,
  said: { readonly name: string; readonly value: unknown; readonly found: string; readonly where: string },
): void {
  const { name, value, found, where } = said;
  const expected = typeof value === 'number' ? key.check(value) : 'a number';
  if (expected !== undefined || typeof value !== 'number') {
    throw new CorruptFileError(`${where}: ${name}: found ${found}, expected ${expected}`, {
      data: { key: name.replace(/^key /, '') },
    });
  }
  defaults[key.option] = key.read === undefined ? value : key.read(value);
}
