/**
 * Q3_K: 256 values in 110 bytes, sixteen groups of 16.
 *
 * | bytes | what |
 * |---|---|
 * | 0–31 | the third bits: bit b of byte l belongs to value 32b + l |
 * | 32–95 | the low 2 bits: 32 bytes for each half of 128 values; byte l holds values l, l + 32, l + 64, l + 96 |
 * | 96–107 | sixteen scales of 6 bits: the low 4 of groups i and i + 8 in byte i, the high 2 of groups i, i + 4, i + 8, i + 12 in byte 8 + i |
 * | 108–109 | `d`, f16 |
 *
 * value = d × (scale − 32) × (code − 4)
 */

import type { QuantFormat } from './format.ts';
import { readF16 } from './scalars.ts';

export const q3_k: QuantFormat = {
  id: 'Q3_K',
  ggufType: 11,
  blockLength: 256,
  blockBytes: 110,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 110) {
      const d = readF16(bytes, at + 108);
      for (let group = 0; group < 16; group++, to += 16) {
        const low = ((bytes[at + 96 + (group & 7)] as number) >> (4 * (group >> 3))) & 15;
        const high = ((bytes[at + 104 + (group & 3)] as number) >> (2 * (group >> 2))) & 3;
        const scale = d * ((low | (high << 4)) - 32);
        const third = at + 16 * (group & 1);
        const codes = at + 32 + 32 * (group >> 3) + 16 * (group & 1);
        const bit = group >> 1;
        const shift = group & 6;
        for (let j = 0; j < 16; j++) {
          const code =
            (((bytes[codes + j] as number) >> shift) & 3) | ((((bytes[third + j] as number) >> bit) & 1) << 2);
          out[to + j] = scale * (code - 4);
        }
      }
    }
  },
};
