/** What is said of a cache of experts: `slru:25%`. */

import { UsageError } from '../errors.ts';

export type CacheSize =
  | { readonly kind: 'slots'; readonly slots: number }
  | { readonly kind: 'share'; readonly share: number }
  | { readonly kind: 'bytes'; readonly bytes: number };

export interface ExpertCacheChoice {
  readonly policy: 'slru' | 'lfu' | 'static';
  readonly size: CacheSize;
}

export function parseExpertCache(text: string): ExpertCacheChoice {
  const [, policy, number, unit] = /^(slru|lfu|static):(\d+)(%?)$/.exec(text) ?? [];
  if (policy === undefined) throw new UsageError(`expert cache: found ${text}`);
  return {
    policy: policy as ExpertCacheChoice['policy'],
    size: unit === '%' ? { kind: 'share', share: Number(number) / 100 } : { kind: 'slots', slots: Number(number) },
  };
}
