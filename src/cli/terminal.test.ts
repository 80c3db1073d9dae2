/** What reaches a terminal: the bar, columns, harmless text; and the loop behind the bandwidth figure. */

import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { measureBandwidth } from './bandwidth.ts';
import { FULL_LINE, readLoop } from './bandwidth-loop.ts';
import { columns, printable, quoted, toJson } from './format.ts';
import { bar, loading, replaying, startProgress } from './progress.ts';

test('the bar fills with the share that is done and never wraps a line', () => {
  const at = (done: number, width = 80) => bar(loading, { done, total: 1e9, elapsedMs: 1000, width });
  assert.equal(at(0), 'loading [................................] 0 B of 1 GB, 0 MB/s');
  assert.equal(at(5e8), 'loading [################................] 500 MB of 1 GB, 500 MB/s');
  assert.equal(at(1e9), 'loading [################################] 1 GB of 1 GB, 1,000 MB/s');
  for (let width = 0; width < 100; width++)
    assert.ok(at(123_456_789, width).length <= Math.max(0, width - 1), `${width}`);
  assert.equal(at(5e8, 40), '500 MB of 1 GB, 500 MB/s');
});

test('a trace is told in tokens', () => {
  const state = { done: 1024, total: 2048, elapsedMs: 1, width: 80 };
  assert.equal(bar(replaying, state), 'replaying [################................] 1,024 of 2,048 tokens');
});

test('a bar before any time or size is known says so', () => {
  assert.equal(
    bar(loading, { done: 0, total: 0, elapsedMs: 0, width: 80 }),
    `loading [${'.'.repeat(32)}] 0 B of 0 B, – MB/s`,
  );
});

test('the bar is redrawn at most every 50 ms, only on a terminal, and taken away when loading failed', () => {
  let nowMs = 0;
  const drawn = (isTTY: boolean, finish?: string) => {
    let text = '';
    const write = (piece: string) => {
      text += piece;
      return true;
    };
    const stream = Object.assign(new PassThrough(), { isTTY, columns: 80, write });
    nowMs = 0;
    const progress = startProgress(stream, { now: () => nowMs });
    for (; nowMs < 200; nowMs += 10) progress.update({ done: nowMs, total: 200 });
    progress.finish(finish);
    return text;
  };
  assert.equal(drawn(true).match(/loading/g)?.length, 4);
  assert.ok(drawn(true).endsWith('\r\x1b[2K'));
  assert.ok(drawn(true, 'm.gguf').endsWith('\r\x1b[2Km.gguf: 190 B in 200 ms\n'));
  assert.equal(drawn(false, 'm.gguf'), '');
});

test('no control character of a file or a model reaches the terminal', () => {
  const all = Array.from({ length: 0x100 }, (_, code) => String.fromCharCode(code)).join('');
  assert.doesNotMatch(printable(all), /[^\n\t\x20-\x7e\xa0-\xff]/);
  assert.equal(printable('\x1b[31m\ttab\n\x9b'), '\\x1b[31m\ttab\n\\x9b');
  assert.equal(printable('naïve 漢字 🙂'), 'naïve 漢字 🙂');
});

test('quoted text is one line, cut at whole characters', () => {
  assert.equal(quoted('a\nb"\x07'), '"a\\nb\\"\\u0007"');
  assert.equal(quoted('🙂'.repeat(5), 2), '"🙂🙂"… (5 characters)');
});

test('columns line up, and the last one leaves no blanks', () => {
  assert.deepEqual(
    columns(
      [
        ['a', '1', 'x'],
        ['bbb', '22', ''],
      ],
      [1],
    ),
    ['a     1  x', 'bbb  22'],
  );
});

test('JSON takes what metadata holds: bigints and typed arrays', () => {
  assert.deepEqual(JSON.parse(toJson({ a: 2n ** 60n, b: new Float32Array([1, 0.5]) })), {
    a: '1152921504606846976',
    b: [1, 0.5],
  });
});

test('the read loop reads every byte of its range, and none outside it', async () => {
  const memory = new WebAssembly.Memory({ initial: 1, maximum: 1 });
  const words = new Uint32Array(memory.buffer);
  const read = await readLoop(memory);
  const end = 16 * FULL_LINE;
  // The loop folds the first word of each 16 bytes.
  for (let word = 0; word < words.length; word += 4) {
    words[word] = 1 << (word % 31);
    const inside = word * 4 >= FULL_LINE && word * 4 < end;
    assert.equal(read(FULL_LINE, end) >>> 0, inside ? words[word]! >>> 0 : 0);
    words[word] = 0;
  }
});

test('every thread reads its share in every pass', async () => {
  const { bytesPerSecond, bytes, threads, passes } = await measureBandwidth(3, 3 * 2 ** 20);
  assert.equal(bytes, 3 * 2 ** 20);
  assert.equal(threads, 3);
  assert.equal(passes, 6);
  assert.ok(Number.isFinite(bytesPerSecond) && bytesPerSecond > 0);
});
