import assert from 'node:assert/strict';
import { test } from 'node:test';
import { random } from '../../test/conformance/support/blocks.ts';
import { IndexedHeap } from './heap.ts';

test('whatever goes in, moves and leaves, the first in order comes out', () => {
  const next = random(3);
  const keys = Array.from({ length: 200 }, () => Math.floor(50 * next()));
  const heap = new IndexedHeap(200, (a, b) => (keys[a] === keys[b] ? a < b : keys[a] < keys[b]));
  const inside = new Set<number>();
  for (let step = 0; step < 20_000; step++) {
    const id = Math.floor(200 * next());
    const what = next();
    if (what < 0.5) {
      keys[id] = Math.floor(50 * next());
      if (inside.has(id) || what < 0.3) {
        inside.add(id);
        heap.put(id);
      }
    } else if (what < 0.99) {
      inside.delete(id);
      heap.remove(id);
    } else {
      for (const each of inside) keys[each] = Math.floor(50 * next());
      heap.rebuild();
    }
    assert.equal(heap.size, inside.size);
    assert.equal(heap.has(id), inside.has(id));
    const sorted = [...inside].sort((a, b) => keys[a] - keys[b] || a - b);
    assert.equal(heap.peek(), sorted[0]);
    if (step % 100 !== 0) continue;
    for (const first of sorted) {
      assert.equal(heap.peek(), first);
      heap.remove(first);
    }
    for (const each of inside) heap.put(each);
  }
});
