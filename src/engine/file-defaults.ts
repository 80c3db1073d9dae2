/** What a model's file says of sampling: the `general.sampling.*` keys of GGUF. */

import { CorruptFileError } from '../errors.ts';
import type { MetadataValue } from '../format/model-file.ts';
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

/** @throws CorruptFileError `corrupt_file` naming a key whose value cannot be meant */
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
    const expected = typeof value === 'number' ? key.check(value) : 'a number';
    if (expected !== undefined || typeof value !== 'number') {
      const found = type === 'array' ? 'an array' : `${JSON.stringify(String(value))} (${type})`;
      throw new CorruptFileError(`${where}: key ${name}: found ${found}, expected ${expected}`, {
        data: { key: name },
      });
    }
    defaults[key.option] = key.read === undefined ? value : key.read(value);
  }
  return { defaults, ignored };
}
