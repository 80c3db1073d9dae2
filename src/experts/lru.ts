/** Least recently used: for comparison, since every book has it. */

import { type Policy, type PolicyRoom, RECENCY_PATIENCE } from './policy.ts';
import { RecencyList } from './recency-list.ts';

export function lru({ pairs }: PolicyRoom): Policy {
  const order = new RecencyList(pairs);
  return {
    patience: RECENCY_PATIENCE,
    insert: (pair) => order.use(pair),
    remove: (pair) => order.remove(pair),
    hit: (pair) => order.use(pair),
    victim: (held) => order.oldest(held),
    admits: () => true,
    recount() {},
    resize() {},
  };
}
