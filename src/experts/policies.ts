/** The cache policies there are, by the names that flags and plans use. */

import { lfu } from './lfu.ts';
import { lru } from './lru.ts';
import type { Policy, PolicyRoom } from './policy.ts';
import { slru } from './slru.ts';

/** What lies in the slots at first stays there: no upload, and the same result every time. */
function fixed(): Policy {
  return {
    insert() {},
    remove() {},
    hit() {},
    victim: () => undefined,
    admits: () => false,
    recount() {},
    resize() {},
  };
}

const table = { slru, lfu, static: fixed, lru } as const satisfies Readonly<
  Record<string, (room: PolicyRoom) => Policy>
>;

export type PolicyName = keyof typeof table;

export const policyNames = Object.keys(table) as readonly PolicyName[];

export function isPolicyName(text: string): text is PolicyName {
  return Object.hasOwn(table, text);
}

export function makePolicy(name: PolicyName, room: PolicyRoom): Policy {
  return table[name](room);
}
