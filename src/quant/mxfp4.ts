/**
 * MXFP4 (OCP Microscaling formats, version 1.0): 32 values of E2M1 in 17 bytes.
 *
 * | bytes | what |
 * |---|---|
 * | 0 | the scale, E8M0; 255 means NaN, and so does every value of such a block |
 * | 1–16 | codes of 4 bits: byte j holds value j in its low half, value j + 16 in its high half |
 *
 * value = scale × e2m1[code]
 */

import type { QuantFormat } from './format.ts';
import { e2m1Doubled, e8m0ToF32 } from './scalars.ts';

export const mxfp4: QuantFormat = {
  id: 'MXFP4',
  ggufType: 39,
  blockLength: 32,
  blockBytes: 17,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 17, to += 32) {
      const halfScale = e8m0ToF32(bytes[at] as number) / 2;
      for (let j = 0; j < 16; j++) {
        const codes = bytes[at + 1 + j] as number;
        out[to + j] = halfScale * (e2m1Doubled[codes & 15] as number);
        out[to + j + 16] = halfScale * (e2m1Doubled[codes >> 4] as number);
      }
    }
  },

  /** The scale is the power of two of the largest value, less E2M1's own (the specification's section 6.3); codes are the nearest. */
  encode(values, offset, out, outOffset, blocks) {
    for (let block = 0; block < blocks; block++) {
      const from = offset + 32 * block;
      const at = outOffset + 17 * block;
      let largest = 0;
      for (let j = 0; j < 32; j++) largest = Math.max(largest, Math.abs(values[from + j] as number));
      const scale =
        largest === 0 ? 0 : Math.min(254, Math.max(0, Math.floor(Math.log2(largest)) - E2M1_EXPONENT + 127));
      out[at] = scale;
      const half = e8m0ToF32(scale) / 2;
      for (let j = 0; j < 16; j++) {
        out[at + 1 + j] =
          nearest(values[from + j] as number, half) | (nearest(values[from + j + 16] as number, half) << 4);
      }
    }
  },
};

/** Exponent of E2M1's largest value, 6. */
const E2M1_EXPONENT = 2;

/** The code of the nearest value, of two the first. */
function nearest(value: number, halfScale: number): number {
  let best = 0;
  let bestError = Number.POSITIVE_INFINITY;
  for (let code = 0; code < 16; code++) {
    const error = Math.abs(halfScale * (e2m1Doubled[code] as number) - value);
    if (error < bestError) {
      best = code;
      bestError = error;
    }
  }
  return best;
}
