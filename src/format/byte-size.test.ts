import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseBytes } from './byte-size.ts';

test('a number of bytes is read as it is written', () => {
  for (const [text, bytes] of [
    ['0', 0],
    ['65536', 65_536],
    ['8GiB', 8 * 2 ** 30],
    ['500MB', 500e6],
    ['1.5 G', 1.5e9],
    ['2tib', 2 * 2 ** 40],
    ['7b', 7],
  ] as const) {
    assert.equal(parseBytes(text), bytes, text);
  }
});

test('what is no number of bytes is told', () => {
  for (const text of ['', '-1', '1XB', '9e9', '1PiB', 'GB', '25%', '1.5.2', '99999999999TB', ' 1']) {
    assert.equal(parseBytes(text), undefined, text);
  }
});
