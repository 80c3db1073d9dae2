/** How tokens are drafted, as a person asks for it and as everything else reads it. */

import { UsageError } from '../errors.ts';
import type { SourceInput } from '../format/source.ts';

/**
 * `mtp:N`: the model's own head that predicts further ahead drafts N tokens. `lookup`, `lookup:N`: what followed the last few
 * tokens earlier in the prompt and the answer. An object: a smaller model of the same vocabulary.
 */
export type SpeculationOption =
  | 'off'
  | `mtp:${number}`
  | 'lookup'
  | `lookup:${number}`
  | {
      /** A model, as `load` takes it. */
      readonly draft: SourceInput;
      /** Tokens drafted at a time; default 3. */
      readonly tokens?: number;
    };

/** What drafts, and how many tokens at a time. */
export type Speculation =
  | { readonly source: 'mtp' | 'lookup'; readonly drafts: number }
  | { readonly source: 'draft'; readonly drafts: number; readonly model: SourceInput };

/** Most drafts at a time: a step then checks eight rows of a request. */
const MOST_DRAFTS = 7;
/** The head goes on from what it made up itself: the further, the less of it comes true. */
const MOST_MTP_DRAFTS = 3;
const DEFAULT_DRAFTS = 3;

const expected =
  `off, mtp:N (N from 1 to ${MOST_MTP_DRAFTS}), lookup or lookup:N (N from 1 to ${MOST_DRAFTS}), ` +
  `or a draft model with 1 to ${MOST_DRAFTS} tokens`;

/**
 * @returns undefined where nothing is drafted
 * @throws UsageError `usage`
 */
export function readSpeculation(option: SpeculationOption | undefined): Speculation | undefined {
  if (option === undefined || option === 'off') return undefined;
  if (typeof option === 'object' && option !== null) {
    const { draft, tokens = DEFAULT_DRAFTS } = option;
    if (draft === undefined || !isCount(tokens, MOST_DRAFTS)) throw badOption(`{ tokens: ${String(tokens)} }`);
    return { source: 'draft', drafts: tokens, model: draft };
  }
  const [, source, count] = /^(mtp|lookup)(?::(\d{1,2}))?$/.exec(String(option)) ?? [];
  if (source === 'mtp' && count !== undefined && isCount(Number(count), MOST_MTP_DRAFTS)) {
    return { source, drafts: Number(count) };
  }
  const drafts = count === undefined ? DEFAULT_DRAFTS : Number(count);
  if (source === 'lookup' && isCount(drafts, MOST_DRAFTS)) return { source, drafts };
  throw badOption(JSON.stringify(String(option).slice(0, 60)));
}

/**
 * `--spec` as the command line takes it: as {@link readSpeculation}, and `draft:FILE` or `draft:FILE:N`.
 * @throws UsageError `usage`
 */
export function parseSpeculation(text: string): SpeculationOption {
  const [, file, tokens] = /^draft:(.+?)(?::(\d{1,2}))?$/.exec(text) ?? [];
  const option =
    file === undefined
      ? (text as SpeculationOption)
      : { draft: file, ...(tokens === undefined ? {} : { tokens: Number(tokens) }) };
  readSpeculation(option);
  return option;
}

function isCount(value: number, most: number): boolean {
  return Number.isInteger(value) && value >= 1 && value <= most;
}

function badOption(found: string): UsageError {
  return new UsageError(`speculation: found ${found}, expected ${expected}`, { data: { option: 'speculation' } });
}
