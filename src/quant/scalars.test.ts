import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  bf16ToF32,
  e4m3ToF32,
  e8m0ToF32,
  f16ToF32,
  f32ToBf16,
  f32ToF16,
  roundHalfAway,
  roundHalfEven,
} from './scalars.ts';

/** The f32 next to `value`, which is positive and finite, on the side of `direction`. */
function next(value: number, direction: 1 | -1): number {
  const words = new Uint32Array(Float32Array.of(value).buffer);
  words[0] = (words[0] as number) + direction;
  return new Float32Array(words.buffer)[0] as number;
}

describe('half-precision formats', () => {
  for (const { name, decode, encode, infinity } of [
    { name: 'f16', decode: f16ToF32, encode: f32ToF16, infinity: 0x7c00 },
    { name: 'bf16', decode: bf16ToF32, encode: f32ToBf16, infinity: 0x7f80 },
  ]) {
    test(`${name}: every bit pattern that is a number comes back as it was`, () => {
      for (let bits = 0; bits <= infinity; bits++) {
        assert.equal(encode(decode(bits)), bits);
        assert.equal(encode(decode(bits | 0x8000)), bits | 0x8000);
        assert.ok(Object.is(decode(bits | 0x8000), -decode(bits)));
      }
    });

    test(`${name}: values grow with their bits`, () => {
      for (let bits = 0; bits < infinity; bits++) {
        assert.ok(decode(bits) < decode(bits + 1), `${bits}`);
      }
    });

    test(`${name}: a value between two neighbours goes to the nearer, and from the middle to the even one`, () => {
      // From 1 on: the middle of bf16's first two subnormals has no f32 below it of the same exponent field.
      for (let bits = 1; bits < infinity - 1; bits++) {
        const middle = (decode(bits) + decode(bits + 1)) / 2;
        assert.equal(encode(middle), bits + (bits & 1), `middle after ${bits}`);
        assert.equal(encode(next(middle, -1)), bits, `below the middle after ${bits}`);
        assert.equal(encode(next(middle, 1)), bits + 1, `above the middle after ${bits}`);
      }
    });

    test(`${name}: what is too large is infinite, and NaN stays NaN`, () => {
      const top = decode(infinity - 1);
      const half = (top - decode(infinity - 2)) / 2;
      assert.equal(encode(top + half), infinity);
      assert.equal(encode(next(top + half, -1)), infinity - 1);
      assert.equal(encode(-Infinity), infinity | 0x8000);
      assert.ok(Number.isNaN(decode(encode(NaN))));
      assert.ok(Number.isNaN(decode(infinity + 1)));
    });
  }

  test('f16: known values', () => {
    for (const [bits, value] of [
      [0x0001, 2 ** -24],
      [0x03ff, 1023 * 2 ** -24],
      [0x0400, 2 ** -14],
      [0x3c00, 1],
      [0x3555, 0.333251953125],
      [0xc000, -2],
      [0x7bff, 65504],
      [0x7c00, Infinity],
      [0xfc00, -Infinity],
    ] as const) {
      assert.equal(f16ToF32(bits), value);
    }
  });
});

describe('scale formats', () => {
  test('E8M0: powers of two from 2^-127 to 2^127, all of them f32 values, and NaN', () => {
    for (let bits = 0; bits < 255; bits++) {
      assert.equal(e8m0ToF32(bits), 2 ** (bits - 127));
      assert.equal(Math.fround(e8m0ToF32(bits)), e8m0ToF32(bits));
    }
    assert.ok(Number.isNaN(e8m0ToF32(255)));
  });

  test('E4M3: known values of the OCP table', () => {
    for (const [bits, value] of [
      [0x00, 0],
      [0x01, 2 ** -9],
      [0x07, 7 * 2 ** -9],
      [0x08, 2 ** -6],
      [0x38, 1],
      [0x3c, 1.5],
      [0x7e, 448],
      [0xb8, -1],
      [0xfe, -448],
    ] as const) {
      assert.equal(e4m3ToF32(bits), value);
    }
    assert.ok(Number.isNaN(e4m3ToF32(0x7f)));
    assert.ok(Number.isNaN(e4m3ToF32(0xff)));
  });
});

test('rounding: ties to even, and ties away from zero', () => {
  assert.deepEqual([0.5, 1.5, 2.5, 2.4, 1023.5].map(roundHalfEven), [0, 2, 2, 2, 1024]);
  assert.deepEqual([0.5, 1.5, -0.5, -2.5, 2.4, -2.6].map(roundHalfAway), [1, 2, -1, -3, 2, -3]);
});
