/**
 * Q5_K: 256 values in 176 bytes, eight groups of 32.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–3 | `dmin`, f16 |
 * | 4–15 | a scale and a minimum a group, 6 bits each: see k-scales.ts |
 * | 16–47 | the fifth bits: bit g of byte l belongs to value l of group g |
 * | 48–175 | the low 4 bits: 32 bytes for each pair of groups, the first in the low halves, the second in the high |
 *
 * value = d × scale × code − dmin × minimum
 */

import type { QuantFormat } from './format.ts';
import { groupMinimum, groupScale } from './k-scales.ts';
import { readF16 } from './scalars.ts';

export const q5_k: QuantFormat = {
  id: 'Q5_K',
  ggufType: 13,
  blockLength: 256,
  blockBytes: 176,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 176) {
      const d = readF16(bytes, at);
      const dmin = readF16(bytes, at + 2);
      const fifth = at + 16;
      for (let group = 0; group < 8; group++, to += 32) {
        const scale = d * groupScale(bytes, at + 4, group);
        const minimum = dmin * groupMinimum(bytes, at + 4, group);
        const codes = at + 48 + 32 * (group >> 1);
        const shift = 4 * (group & 1);
        for (let j = 0; j < 32; j++) {
          const low = ((bytes[codes + j] as number) >> shift) & 15;
          const high = ((bytes[fifth + j] as number) >> group) & 1;
          out[to + j] = scale * (low | (high << 4)) - minimum;
        }
      }
    }
  },
};
