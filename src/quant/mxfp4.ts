/**
 * MXFP4 (OCP Microscaling formats, version 1.0): 32 values of E2M1 in 17 bytes.
 *
 * | bytes | what |
 * |---|---|
 * | 0 | the scale, E8M0; 255 means NaN, and so does every value of such a block |
 * | 1–16 | codes of 4 bits: byte j holds value j in its low half, value j + 16 in its high half |
 *
 * value = scale × e2m1[code]
 */

import type { QuantFormat } from './format.ts';
import { e2m1Doubled, e8m0ToF32 } from './scalars.ts';

export const mxfp4: QuantFormat = {
  id: 'MXFP4',
  ggufType: 39,
  blockLength: 32,
  blockBytes: 17,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 17, to += 32) {
      const halfScale = e8m0ToF32(bytes[at] as number) / 2;
      for (let j = 0; j < 16; j++) {
        const codes = bytes[at + 1 + j] as number;
        out[to + j] = halfScale * (e2m1Doubled[codes & 15] as number);
        out[to + j + 16] = halfScale * (e2m1Doubled[codes >> 4] as number);
      }
    }
  },
};
