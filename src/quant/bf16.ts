/** BF16: the upper 16 bits of an f32, 2 bytes each, least significant byte first. */

import type { QuantFormat } from './format.ts';
import { f32ToBf16 } from './scalars.ts';

export const bf16: QuantFormat = {
  id: 'BF16',
  ggufType: 30,
  blockLength: 1,
  blockBytes: 2,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    const words = new Uint32Array(out.buffer, out.byteOffset + 4 * outOffset, blocks);
    for (let i = 0; i < blocks; i++) {
      const at = byteOffset + 2 * i;
      words[i] = ((bytes[at] as number) << 16) | ((bytes[at + 1] as number) << 24);
    }
  },

  encode(values, offset, out, outOffset, blocks) {
    for (let i = 0; i < blocks; i++) {
      const bits = f32ToBf16(values[offset + i] as number);
      out[outOffset + 2 * i] = bits & 255;
      out[outOffset + 2 * i + 1] = bits >> 8;
    }
  },
};
