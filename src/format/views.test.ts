import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CorruptFileError } from '../errors.ts';
import { rowsView, ViewSource } from './views.ts';

/** Rows whose bytes say which row and where, and the rows that were made, call by call. */
function numbered(rows: number, rowBytes: number) {
  const made: (readonly [number, number])[] = [];
  const at = (row: number, byte: number) => (row * 7 + byte * 3) & 255;
  const view = rowsView({
    rows,
    rowBytes,
    async make(first, count, target) {
      made.push([first, count]);
      assert.equal(target.byteLength, count * rowBytes);
      for (let i = 0; i < target.length; i++) target[i] = at(first + Math.floor(i / rowBytes), i % rowBytes);
    },
  });
  return {
    view,
    made,
    all: Uint8Array.from({ length: rows * rowBytes }, (_, i) => at(Math.floor(i / rowBytes), i % rowBytes)),
  };
}

test('any range of rows holds the bytes of the whole, and writes none beside', async () => {
  const { view, all } = numbered(5, 7);
  assert.equal(view.bytes, 35);
  for (let from = 0; from <= 35; from++) {
    for (let to = from; to <= 35; to++) {
      const target = new Uint8Array(new SharedArrayBuffer(to - from + 2), 0).fill(9);
      await view.readInto(from, target.subarray(1, 1 + to - from));
      assert.deepEqual([...target], [9, ...all.subarray(from, to), 9], `${from} to ${to}`);
    }
  }
});

test('whole rows are made some at a time, so that little is held beside them', async () => {
  const { view, made, all } = numbered(5000, 1000);
  const target = new Uint8Array(all.length);
  await view.readInto(0, target);
  assert.deepEqual(target, all);
  assert.ok(made.length >= 4 && made.every(([, count]) => count * 1000 <= 2 ** 20));
  const wide = numbered(2, 3 * 2 ** 20);
  await wide.view.readInto(0, new Uint8Array(wide.all.length));
  assert.deepEqual(wide.made, [
    [0, 1],
    [1, 1],
  ]);
});

test('views stand one after the other, and a range may go over their borders', async () => {
  const source = new ViewSource('made');
  const parts = [numbered(3, 5), numbered(1, 1), numbered(2, 9)];
  assert.deepEqual(
    parts.map(({ view }) => source.add(view)),
    [0, 15, 16],
  );
  assert.equal(source.size, 34);
  const all = parts.flatMap((part) => [...part.all]);
  for (let from = 0; from <= 34; from++) {
    const target = new Uint8Array(34 - from);
    await source.readInto(from, target);
    assert.deepEqual([...target], all.slice(from));
  }
  await assert.rejects(source.readInto(30, new Uint8Array(5)), CorruptFileError);
  await assert.rejects(source.readInto(-1, new Uint8Array(1)), CorruptFileError);
});
