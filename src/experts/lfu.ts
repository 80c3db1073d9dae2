/**
 * Least frequently used, with counts that fade: the coldest pair gives its slot away, and only to one that was used more.
 * So few uploads do most of the work, and a cache that holds the right experts stops uploading.
 */

import { IndexedHeap } from './heap.ts';
import type { Policy, PolicyRoom } from './policy.ts';

export function lfu({ pairs, usage }: PolicyRoom): Policy {
  const order = new IndexedHeap(pairs, usage.colder);
  return {
    patience: Infinity,
    insert: (pair) => order.put(pair),
    remove: (pair) => order.remove(pair),
    hit: (pair) => order.put(pair),
    victim(held) {
      // Few are held at a time: those that are in the way step aside for a moment.
      const aside: number[] = [];
      let pair = order.peek();
      while (pair !== undefined && held?.(pair) === true) {
        order.remove(pair);
        aside.push(pair);
        pair = order.peek();
      }
      for (const each of aside) order.put(each);
      return pair;
    },
    admits: (pair, victim) => usage.counts[pair] > usage.counts[victim],
    recount: () => order.rebuild(),
    resize() {},
  };
}
