/**
 * Q5_1: 32 values in 24 bytes.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–3 | `m`, f16 |
 * | 4–7 | the fifth bits: bit j of this 32-bit word belongs to value j |
 * | 8–23 | the low 4 bits: byte j holds value j in its low half, value j + 16 in its high half |
 *
 * value = d × code + m
 */

import type { QuantFormat } from './format.ts';
import { readF16 } from './scalars.ts';

export const q5_1: QuantFormat = {
  id: 'Q5_1',
  ggufType: 7,
  blockLength: 32,
  blockBytes: 24,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 24, to += 32) {
      const d = readF16(bytes, at);
      const m = readF16(bytes, at + 2);
      const low = (bytes[at + 4] as number) | ((bytes[at + 5] as number) << 8);
      const high = (bytes[at + 6] as number) | ((bytes[at + 7] as number) << 8);
      for (let j = 0; j < 16; j++) {
        const codes = bytes[at + 8 + j] as number;
        out[to + j] = d * ((codes & 15) | (((low >> j) & 1) << 4)) + m;
        out[to + j + 16] = d * ((codes >> 4) | (((high >> j) & 1) << 4)) + m;
      }
    }
  },
};
