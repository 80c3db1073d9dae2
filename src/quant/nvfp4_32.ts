/**
 * NVFP4 as safetensors hold it, where a row need not be whole blocks of 64 ({@link nvfp4}): 32 values of E2M1 in 18 bytes,
 * two groups of 16. The f32 scale of the whole tensor is not in the block: the model has it as a weight of its own.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | a scale a group, E4M3 without its sign bit, which means nothing here; 0x7F means NaN |
 * | 2–17 | codes of 4 bits, 8 bytes a group: byte j holds value j in its low half, value j + 8 in its high half |
 *
 * value = scale × e2m1[code]
 */

import type { QuantFormat } from './format.ts';
import { e2m1Doubled, e4m3ToF32 } from './scalars.ts';

const halfScales = Float32Array.from({ length: 128 }, (_, bits) => e4m3ToF32(bits) / 2);

export const nvfp4_32: QuantFormat = {
  id: 'NVFP4_32',
  blockLength: 32,
  blockBytes: 18,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 18) {
      for (let group = 0; group < 2; group++, to += 16) {
        const halfScale = halfScales[(bytes[at + group] as number) & 127] as number;
        const from = at + 2 + 8 * group;
        for (let j = 0; j < 8; j++) {
          const codes = bytes[from + j] as number;
          out[to + j] = halfScale * (e2m1Doubled[codes & 15] as number);
          out[to + j + 8] = halfScale * (e2m1Doubled[codes >> 4] as number);
        }
      }
    }
  },
};
