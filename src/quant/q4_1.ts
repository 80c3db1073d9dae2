/**
 * Q4_1: 32 values in 20 bytes.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–3 | `m`, f16 |
 * | 4–19 | codes of 4 bits: byte j holds value j in its low half, value j + 16 in its high half |
 *
 * value = d × code + m
 */

import type { QuantFormat } from './format.ts';
import { readF16 } from './scalars.ts';

export const q4_1: QuantFormat = {
  id: 'Q4_1',
  ggufType: 3,
  blockLength: 32,
  blockBytes: 20,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 20, to += 32) {
      const d = readF16(bytes, at);
      const m = readF16(bytes, at + 2);
      for (let j = 0; j < 16; j++) {
        const codes = bytes[at + 4 + j] as number;
        out[to + j] = d * (codes & 15) + m;
        out[to + j + 16] = d * (codes >> 4) + m;
      }
    }
  },
};
