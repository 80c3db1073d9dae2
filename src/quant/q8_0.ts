/**
 * Q8_0: 32 values in 34 bytes.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–33 | codes, i8 |
 *
 * value = d × code
 */

import type { QuantFormat } from './format.ts';
import { readF16, roundHalfAway, writeF16 } from './scalars.ts';

export const q8_0: QuantFormat = {
  id: 'Q8_0',
  ggufType: 8,
  blockLength: 32,
  blockBytes: 34,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 34, to += 32) {
      const d = readF16(bytes, at);
      for (let j = 0; j < 32; j++) {
        out[to + j] = d * (((bytes[at + 2 + j] as number) << 24) >> 24);
      }
    }
  },

  encode(values, offset, out, outOffset, blocks) {
    for (let block = 0; block < blocks; block++) {
      const from = offset + 32 * block;
      const at = outOffset + 34 * block;
      let largest = 0;
      for (let j = 0; j < 32; j++) {
        largest = Math.max(largest, Math.abs(values[from + j] as number));
      }
      const d = Math.fround(largest / 127);
      const inverse = d === 0 ? 0 : Math.fround(1 / d);
      writeF16(out, at, d);
      for (let j = 0; j < 32; j++) {
        out[at + 2 + j] = roundHalfAway(Math.fround((values[from + j] as number) * inverse)) & 255;
      }
    }
  },
};
