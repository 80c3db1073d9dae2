/**
 * Q5_0: 32 values in 22 bytes.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–5 | the fifth bits: bit j of this 32-bit word belongs to value j |
 * | 6–21 | the low 4 bits: byte j holds value j in its low half, value j + 16 in its high half |
 *
 * value = d × (code − 16)
 */

import type { QuantFormat } from './format.ts';
import { readF16, writeF16 } from './scalars.ts';

export const q5_0: QuantFormat = {
  id: 'Q5_0',
  ggufType: 6,
  blockLength: 32,
  blockBytes: 22,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 22, to += 32) {
      const d = readF16(bytes, at);
      const low = (bytes[at + 2] as number) | ((bytes[at + 3] as number) << 8);
      const high = (bytes[at + 4] as number) | ((bytes[at + 5] as number) << 8);
      for (let j = 0; j < 16; j++) {
        const codes = bytes[at + 6 + j] as number;
        out[to + j] = d * (((codes & 15) | (((low >> j) & 1) << 4)) - 16);
        out[to + j + 16] = d * (((codes >> 4) | (((high >> j) & 1) << 4)) - 16);
      }
    }
  },

  // The value of the largest magnitude becomes code 0, which is worth -16 steps: one more than the other end has.
  encode(values, offset, out, outOffset, blocks) {
    for (let block = 0; block < blocks; block++) {
      const from = offset + 32 * block;
      const at = outOffset + 22 * block;
      let extreme = 0;
      for (let j = 0; j < 32; j++) {
        const value = values[from + j] as number;
        extreme = Math.abs(value) > Math.abs(extreme) ? value : extreme;
      }
      const d = Math.fround(extreme / -16);
      const inverse = d === 0 ? 0 : Math.fround(1 / d);
      const code = (value: number) => Math.min(31, Math.floor(Math.fround(Math.fround(value * inverse) + 16.5)));
      writeF16(out, at, d);
      let fifths = 0;
      for (let j = 0; j < 16; j++) {
        const first = code(values[from + j] as number);
        const second = code(values[from + j + 16] as number);
        out[at + 6 + j] = (first & 15) | ((second & 15) << 4);
        fifths |= ((first >> 4) << j) | ((second >> 4) << (j + 16));
      }
      for (let byte = 0; byte < 4; byte++) out[at + 2 + byte] = (fifths >>> (8 * byte)) & 255;
    }
  },
};
