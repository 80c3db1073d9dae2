/**
 * Q4_0: 32 values in 18 bytes.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–17 | codes of 4 bits: byte j holds value j in its low half, value j + 16 in its high half |
 *
 * value = d × (code − 8)
 */

import type { QuantFormat } from './format.ts';
import { readF16, writeF16 } from './scalars.ts';

export const q4_0: QuantFormat = {
  id: 'Q4_0',
  ggufType: 2,
  blockLength: 32,
  blockBytes: 18,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 18, to += 32) {
      const d = readF16(bytes, at);
      for (let j = 0; j < 16; j++) {
        const codes = bytes[at + 2 + j] as number;
        out[to + j] = d * ((codes & 15) - 8);
        out[to + j + 16] = d * ((codes >> 4) - 8);
      }
    }
  },

  // The value of the largest magnitude becomes code 0, which is worth -8 steps: one more than the other end has.
  encode(values, offset, out, outOffset, blocks) {
    for (let block = 0; block < blocks; block++) {
      const from = offset + 32 * block;
      const at = outOffset + 18 * block;
      let extreme = 0;
      for (let j = 0; j < 32; j++) {
        const value = values[from + j] as number;
        extreme = Math.abs(value) > Math.abs(extreme) ? value : extreme;
      }
      const d = Math.fround(extreme / -8);
      const inverse = d === 0 ? 0 : Math.fround(1 / d);
      const code = (value: number) => Math.min(15, Math.floor(Math.fround(Math.fround(value * inverse) + 8.5)));
      writeF16(out, at, d);
      for (let j = 0; j < 16; j++) {
        out[at + 2 + j] = code(values[from + j] as number) | (code(values[from + j + 16] as number) << 4);
      }
    }
  },
};
