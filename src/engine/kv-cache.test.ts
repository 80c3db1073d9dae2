import assert from 'node:assert/strict';
import { test } from 'node:test';
import { PAGE_ROWS } from '../backend/backend.ts';
import { OutOfMemoryError } from '../errors.ts';
import { PagePool, Timeline } from './kv-cache.ts';

test('timelines never share a page, and give back what a rewind frees', () => {
  const pool = new PagePool(8);
  const timelines = Array.from({ length: 3 }, () => new Timeline(pool, 8 * PAGE_ROWS));
  // A walk of reserves and rewinds, decided by a fixed sequence.
  for (let turn = 0; turn < 500; turn++) {
    const timeline = timelines[turn % 3]!;
    const rows = (turn * 37) % 90;
    if ((turn * 7) % 5 < 3) {
      try {
        timeline.reserve(rows);
        timeline.advance(rows, 'prompt');
      } catch (error) {
        assert.ok(error instanceof OutOfMemoryError);
      }
    } else {
      timeline.rewind(Math.max(0, timeline.length - rows));
    }
    const used = timelines.flatMap(({ pageTable }) => [...pageTable]);
    assert.equal(new Set(used).size, used.length);
    assert.equal(used.length + pool.free, 8);
    for (const { length, pageTable } of timelines) assert.ok(pageTable.length >= Math.ceil(length / PAGE_ROWS));
  }
});

test('a reservation that does not fit takes nothing and says what there is', () => {
  const pool = new PagePool(3);
  const first = new Timeline(pool, 3 * PAGE_ROWS);
  const second = new Timeline(pool, 3 * PAGE_ROWS);
  first.reserve(PAGE_ROWS + 1);
  first.advance(PAGE_ROWS + 1, 'prompt');
  assert.throws(
    () => second.reserve(PAGE_ROWS + 1),
    (error) => error instanceof OutOfMemoryError && /3 pages/.test(error.message) && /1 are free/.test(error.message),
  );
  assert.equal(pool.free, 1);
  second.reserve(PAGE_ROWS);
  first.rewind(0);
  assert.equal(pool.free, 2);
});

test('rows stay in their pages when a timeline rewinds and grows again', () => {
  const timeline = new Timeline(new PagePool(4), 4 * PAGE_ROWS);
  timeline.reserve(2 * PAGE_ROWS);
  timeline.advance(2 * PAGE_ROWS, 'prompt');
  const [page] = timeline.pageTable;
  timeline.rewind(10);
  timeline.reserve(3 * PAGE_ROWS);
  assert.equal(timeline.pageTable[0], page);
  assert.equal(timeline.length, 10);
});

test('prompt rows count until the first row of a step', () => {
  const timeline = new Timeline(new PagePool(1), PAGE_ROWS);
  timeline.reserve(20);
  timeline.advance(5, 'prompt');
  timeline.advance(2, 'step');
  timeline.advance(3, 'prompt');
  assert.deepEqual([timeline.length, timeline.promptRows], [10, 5]);
  timeline.rewind(4);
  timeline.advance(3, 'prompt');
  assert.deepEqual([timeline.length, timeline.promptRows], [7, 7]);
});
