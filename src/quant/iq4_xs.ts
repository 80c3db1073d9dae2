/**
 * IQ4_XS: 256 values in 136 bytes, eight groups of 32, with the levels of IQ4_NL.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–3 | the high 2 bits of the eight scales, group 0 lowest |
 * | 4–7 | the low 4 bits of the eight scales, two a byte, the even group in the low half |
 * | 8–135 | codes of 4 bits, 16 bytes a group: byte j holds value j in its low half, value j + 16 in its high half |
 *
 * value = d × (scale − 32) × level[code]
 */

import type { QuantFormat } from './format.ts';
import { readF16, unevenLevels } from './scalars.ts';

export const iq4_xs: QuantFormat = {
  id: 'IQ4_XS',
  ggufType: 23,
  blockLength: 256,
  blockBytes: 136,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 136) {
      const d = readF16(bytes, at);
      const high = (bytes[at + 2] as number) | ((bytes[at + 3] as number) << 8);
      for (let group = 0; group < 8; group++, to += 32) {
        const low = ((bytes[at + 4 + (group >> 1)] as number) >> (4 * (group & 1))) & 15;
        const scale = d * ((low | (((high >> (2 * group)) & 3) << 4)) - 32);
        const from = at + 8 + 16 * group;
        for (let j = 0; j < 16; j++) {
          const codes = bytes[from + j] as number;
          out[to + j] = scale * (unevenLevels[codes & 15] as number);
          out[to + j + 16] = scale * (unevenLevels[codes >> 4] as number);
        }
      }
    }
  },
};
