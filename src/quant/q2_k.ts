/**
 * Q2_K: 256 values in 84 bytes, sixteen groups of 16.
 *
 * | bytes | what |
 * |---|---|
 * | 0–15 | a byte a group: its scale in the low 4 bits, its minimum in the high 4 |
 * | 16–79 | codes of 2 bits: 32 bytes for each half of 128 values; byte l holds values l, l + 32, l + 64, l + 96 |
 * | 80–81 | `d`, f16 |
 * | 82–83 | `dmin`, f16 |
 *
 * value = d × scale × code − dmin × minimum
 */

import type { QuantFormat } from './format.ts';
import { readF16 } from './scalars.ts';

export const q2_k: QuantFormat = {
  id: 'Q2_K',
  ggufType: 10,
  blockLength: 256,
  blockBytes: 84,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 84) {
      const d = readF16(bytes, at + 80);
      const dmin = readF16(bytes, at + 82);
      for (let group = 0; group < 16; group++, to += 16) {
        const packed = bytes[at + group] as number;
        const scale = d * (packed & 15);
        const minimum = dmin * (packed >> 4);
        const codes = at + 16 + 32 * (group >> 3) + 16 * (group & 1);
        const shift = group & 6;
        for (let j = 0; j < 16; j++) {
          out[to + j] = scale * (((bytes[codes + j] as number) >> shift) & 3) - minimum;
        }
      }
    }
  },
};
