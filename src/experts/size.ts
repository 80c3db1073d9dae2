/** How large an expert cache is: what was asked for in words, how many slots that is, and what is advisable. */

import { UsageError } from '../errors.ts';
import { parseBytes } from '../format/byte-size.ts';
import { isPolicyName, type PolicyName, policyNames } from './policies.ts';

export type CacheSize =
  | { readonly kind: 'slots'; readonly slots: number }
  /** Of all experts of all layers. */
  | { readonly kind: 'percent'; readonly percent: number }
  | { readonly kind: 'bytes'; readonly bytes: number };

export interface ExpertCacheSpec {
  readonly policy: PolicyName;
  /** Absent: whatever the memory gives. */
  readonly size?: CacheSize;
}

/** The experts that a cache may hold. */
export interface ExpertsToHold {
  readonly layers: number;
  /** Of a layer. */
  readonly experts: number;
  /** Of one expert, where a slot lies. Absent: nobody knows, and a size in bytes cannot be used. */
  readonly expertBytes?: number;
}

/**
 * Reads `slru:25%`: a policy, and after a colon slots in all (`1536`), a per cent of all experts (`12.5%`) or bytes with
 * their unit (`8GiB`, `500MB`). Without a size the cache takes what the memory gives.
 * @throws UsageError `usage` for anything else
 */
export function parseExpertCache(text: string): ExpertCacheSpec {
  const [policy = '', ...rest] = text.split(':');
  if (!isPolicyName(policy) || rest.length > 1) throw notACache(text);
  if (rest.length === 0) return { policy };
  const size = parseSize(rest[0] as string);
  if (size === undefined) throw notACache(text);
  return { policy, size };
}

function parseSize(text: string): CacheSize | undefined {
  if (/^\d+$/.test(text)) {
    const slots = Number(text);
    return slots >= 1 && Number.isSafeInteger(slots) ? { kind: 'slots', slots } : undefined;
  }
  const percent = /^(\d+(?:\.\d+)?)%$/.exec(text)?.[1];
  if (percent !== undefined) {
    const value = Number(percent);
    return value > 0 && value <= 100 ? { kind: 'percent', percent: value } : undefined;
  }
  // Without a unit a number is of slots, and nobody has half of one.
  const bytes = /b$|[kmgt]/i.test(text) ? parseBytes(text) : undefined;
  return bytes === undefined || bytes < 1 ? undefined : { kind: 'bytes', bytes };
}

/**
 * Reads how many slots are to be pinned: a number of them (`64`), or a per cent (`25%`).
 * @throws UsageError `usage` for anything else
 */
export function parsePins(text: string): CacheSize {
  const size = parseSize(text);
  if (size !== undefined && size.kind !== 'bytes') return size;
  throw new UsageError(
    `--expert-pin expects a number of slots (64) or a per cent of them (25%), found ${JSON.stringify(text)}`,
    { data: { option: 'expertPin', found: text } },
  );
}

/**
 * Slots to be pinned, of so many.
 * @throws UsageError `usage` when that is none, or more than there are
 */
export function pinsOf(size: CacheSize, slots: number): number {
  const pins =
    size.kind === 'percent' ? Math.floor((size.percent * slots) / 100) : size.kind === 'slots' ? size.slots : 0;
  if (pins >= 1 && pins <= slots) return pins;
  throw new UsageError(
    `expertPin (--expert-pin): ${showSize(size)} of ${slots} slots are ${pins < 1 ? 'not one' : 'more than there are'}; ask for 1 to ${slots}`,
    { data: { option: 'expertPin', slots } },
  );
}

function notACache(text: string): UsageError {
  return new UsageError(
    `--expert-cache expects one of ${policyNames.join(', ')}, and after a colon slots in all (1536), a per cent of all ` +
      `experts (25%) or bytes (8GiB), as in slru:25%; found ${JSON.stringify(text)}`,
    { data: { option: 'expertCache', found: text } },
  );
}

/**
 * Slots of a size, at most one for each expert.
 * @throws UsageError `usage` when that is not even one, or when the size is in bytes and nobody knows an expert's
 */
export function slotsOfSize(size: CacheSize, { layers, experts, expertBytes }: ExpertsToHold): number {
  const all = layers * experts;
  let slots: number;
  if (size.kind === 'bytes') {
    if (expertBytes === undefined) {
      throw new UsageError(
        `an expert cache of ${showSize(size)} needs to know the bytes of an expert; say them, or give the size in slots or per cent`,
        { data: { option: 'expertCache', size } },
      );
    }
    slots = Math.floor(size.bytes / expertBytes);
  } else {
    slots = size.kind === 'slots' ? size.slots : Math.floor((size.percent * all) / 100);
  }
  if (slots >= 1) return Math.min(slots, all);
  const expert =
    size.kind === 'bytes' ? `an expert has ${Math.ceil(expertBytes ?? 0)} bytes` : `there are ${all} experts`;
  throw new UsageError(`an expert cache of ${showSize(size)} holds not one expert (${expert}); give it more`, {
    data: { option: 'expertCache', size, experts: all, expertBytes },
  });
}

function showSize(size: CacheSize): string {
  if (size.kind === 'slots') return `${size.slots} slots`;
  return size.kind === 'percent' ? `${size.percent}%` : `${size.bytes} bytes`;
}

/** Slots that are advisable: twice a token's experts, layer for layer. */
export function recommendedSlots(model: {
  readonly layers: number;
  readonly experts: number;
  /** Experts that a token uses in a layer. */
  readonly used: number;
}): number {
  return model.layers * Math.min(model.experts, 2 * model.used);
}

export type CacheStatus = 'ok' | 'below recommended' | 'budget exhausted';

/**
 * What is to be said of a cache that got `slots`. The budget is exhausted when it gave fewer than were asked for, or none.
 * @param asked absent: as many as the budget gives
 */
export function cacheStatus(cache: {
  readonly slots: number;
  readonly recommended: number;
  readonly asked?: number;
}): CacheStatus {
  if (cache.slots < (cache.asked ?? 1)) return 'budget exhausted';
  return cache.slots < cache.recommended ? 'below recommended' : 'ok';
}
