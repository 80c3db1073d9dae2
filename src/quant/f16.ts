/** F16: IEEE half-precision values, 2 bytes each, least significant byte first. */

import type { QuantFormat } from './format.ts';
import { readF16, writeF16 } from './scalars.ts';

export const f16: QuantFormat = {
  id: 'F16',
  ggufType: 1,
  blockLength: 1,
  blockBytes: 2,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    for (let i = 0; i < blocks; i++) {
      out[outOffset + i] = readF16(bytes, byteOffset + 2 * i);
    }
  },

  encode(values, offset, out, outOffset, blocks) {
    for (let i = 0; i < blocks; i++) {
      writeF16(out, outOffset + 2 * i, values[offset + i] as number);
    }
  },
};
