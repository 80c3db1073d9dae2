/**
 * FP8 weights with their scales (E4M3, "FN" form: no infinities, 0x7F and 0xFF are NaN), in blocks of a row: checkpoints
 * have a scale for 128×128 values, for a row or for all, and a block repeats the one that is its own.
 *
 * | bytes | what |
 * |---|---|
 * | 0–3 | the scale, f32 |
 * | 4 … | a value a byte |
 *
 * value = scale × e4m3[byte], rounded to f32
 */

import type { QuantFormat } from './format.ts';
import { e4m3ToF32 } from './scalars.ts';

const values = Float32Array.from({ length: 256 }, (_, bits) => e4m3ToF32(bits));
const word = new Uint8Array(4);
const scale = new Float32Array(word.buffer);

/** The format with blocks of so many values. */
export function fp8Blocks(id: string, blockLength: number): QuantFormat {
  return {
    id,
    blockLength,
    blockBytes: 4 + blockLength,
    decode(bytes, byteOffset, out, outOffset, blocks) {
      let at = byteOffset;
      let to = outOffset;
      for (let block = 0; block < blocks; block++) {
        for (let i = 0; i < 4; i++) word[i] = bytes[at++] as number;
        const factor = scale[0] as number;
        for (let i = 0; i < blockLength; i++) out[to++] = factor * (values[bytes[at++] as number] as number);
      }
    },
  };
}
