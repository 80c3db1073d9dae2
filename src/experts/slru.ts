/**
 * Segmented LRU (Karedla, Love, Wherry: "Caching strategies to improve disk system performance", 1994): what comes in is
 * on probation in a quarter of the slots; a use there moves it to the protected three quarters, whose least recently used
 * goes back on probation. So an expert that a text needed once does not push out those that every text needs.
 */

import { type Policy, type PolicyRoom, RECENCY_PATIENCE } from './policy.ts';
import { RecencyList } from './recency-list.ts';

const PROTECTED_SHARE = 0.75;

export function slru(room: PolicyRoom): Policy {
  const probation = new RecencyList(room.pairs);
  const guarded = new RecencyList(room.pairs);
  let mostGuarded = 0;
  const demote = () => {
    while (guarded.size > mostGuarded) {
      const pair = guarded.oldest() as number;
      guarded.remove(pair);
      probation.use(pair);
    }
  };
  const resize = (slots: number) => {
    mostGuarded = Math.floor(PROTECTED_SHARE * slots);
    demote();
  };
  resize(room.slots);
  return {
    patience: RECENCY_PATIENCE,
    insert: (pair) => probation.use(pair),
    remove(pair) {
      probation.remove(pair);
      guarded.remove(pair);
    },
    hit(pair) {
      probation.remove(pair);
      guarded.use(pair);
      demote();
    },
    victim: (held) => probation.oldest(held) ?? guarded.oldest(held),
    admits: () => true,
    recount() {},
    resize,
  };
}
