import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { losslessUtf8, strictUtf8, utf8Bytes } from './utf8.ts';

/** mulberry32, so that a failure can be repeated. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

describe('text without loss', () => {
  test('valid UTF-8 is the text it means, byte order marks included', () => {
    for (const text of ['', 'abc', 'Ġthe', '日本語', '👍🏽', '\ufeff', 'a\ufeffb', '\u0000']) {
      const bytes = new TextEncoder().encode(text);
      assert.equal(strictUtf8(bytes), text);
      assert.equal(losslessUtf8(bytes), text);
      assert.deepEqual(utf8Bytes(text), bytes);
    }
  });

  test('each byte outside UTF-8 becomes U+DC00 + byte, its neighbours stay text', () => {
    const cases: [number[], string][] = [
      [[0x61, 0xff, 0x62], 'a\udcffb'],
      [[0xc3], '\udcc3'],
      [[0xc3, 0xa9, 0xa9], 'é\udca9'],
      [[0xc0, 0x80], '\udcc0\udc80'], // overlong
      [[0xe0, 0x9f, 0xbf], '\udce0\udc9f\udcbf'], // overlong
      [[0xed, 0xa0, 0x80], '\udced\udca0\udc80'], // a surrogate
      [[0xf4, 0x90, 0x80, 0x80], '\udcf4\udc90\udc80\udc80'], // past U+10FFFF
      [[0xf5, 0x80, 0x80, 0x80], '\udcf5\udc80\udc80\udc80'],
      [[0xf0, 0x9f, 0x91, 0x8d, 0xf0, 0x9f, 0x91], '👍\udcf0\udc9f\udc91'],
      [[0xe2, 0x82, 0x41], '\udce2\udc82A'],
    ];
    for (const [bytes, text] of cases) {
      assert.equal(strictUtf8(Uint8Array.from(bytes)), undefined);
      assert.equal(losslessUtf8(Uint8Array.from(bytes)), text);
      assert.deepEqual(utf8Bytes(text), Uint8Array.from(bytes));
    }
  });

  test('any bytes come back, and different bytes give different texts', () => {
    const draw = random(1);
    // Leads and continuations that come close to being characters, so that both branches are met often.
    const alphabet = [
      0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc1, 0xc3, 0xe0, 0xe2, 0xed, 0xf0, 0xf4, 0xf5, 0xff,
    ];
    const seen = new Map<string, string>();
    for (let round = 0; round < 20_000; round++) {
      const bytes = Uint8Array.from(
        { length: Math.floor(draw() * 9) },
        () => alphabet[Math.floor(draw() * alphabet.length)],
      );
      const text = losslessUtf8(bytes);
      assert.deepEqual(utf8Bytes(text), bytes);
      assert.equal(seen.get(text) ?? `${bytes}`, `${bytes}`);
      seen.set(text, `${bytes}`);
    }
  });
});
