/**
 * IQ4_NL: 32 values in 18 bytes, each one of sixteen levels that lie closer together near zero.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–17 | codes of 4 bits: byte j holds value j in its low half, value j + 16 in its high half |
 *
 * value = d × level[code]
 */

import type { QuantFormat } from './format.ts';
import { readF16, unevenLevels } from './scalars.ts';

export const iq4_nl: QuantFormat = {
  id: 'IQ4_NL',
  ggufType: 20,
  blockLength: 32,
  blockBytes: 18,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 18, to += 32) {
      const d = readF16(bytes, at);
      for (let j = 0; j < 16; j++) {
        const codes = bytes[at + 2 + j] as number;
        out[to + j] = d * (unevenLevels[codes & 15] as number);
        out[to + j + 16] = d * (unevenLevels[codes >> 4] as number);
      }
    }
  },
};
