/**
 * Q6_K: 256 values in 210 bytes, sixteen groups of 16.
 *
 * | bytes | what |
 * |---|---|
 * | 0–127 | the low 4 bits: 64 bytes for each half of 128 values; byte l holds value l in its low half, l + 64 in its high |
 * | 128–191 | the high 2 bits: 32 bytes a half; byte l holds values l, l + 32, l + 64, l + 96 |
 * | 192–207 | scales, i8, one a group |
 * | 208–209 | `d`, f16 |
 *
 * value = d × scale × (code − 32)
 */

import type { QuantFormat } from './format.ts';
import { readF16, writeF16 } from './scalars.ts';

export const q6_k: QuantFormat = {
  id: 'Q6_K',
  ggufType: 14,
  blockLength: 256,
  blockBytes: 210,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 210) {
      const d = readF16(bytes, at + 208);
      for (let group = 0; group < 16; group++, to += 16) {
        const scale = d * (((bytes[at + 192 + group] as number) << 24) >> 24);
        const low = at + lowByte(16 * group);
        const lowShift = group & 4;
        const high = at + highByte(16 * group);
        const highShift = group & 6;
        for (let j = 0; j < 16; j++) {
          const code =
            (((bytes[low + j] as number) >> lowShift) & 15) | ((((bytes[high + j] as number) >> highShift) & 3) << 4);
          out[to + j] = scale * (code - 32);
        }
      }
    }
  },

  encode(values, offset, out, outOffset, blocks) {
    const steps = new Float32Array(16);
    for (let block = 0; block < blocks; block++) {
      const from = offset + 256 * block;
      const at = outOffset + 210 * block;
      for (let group = 0; group < 16; group++) {
        let largest = 0;
        for (let j = 0; j < 16; j++) {
          largest = Math.max(largest, Math.abs(values[from + 16 * group + j] as number));
        }
        steps[group] = largest / 31;
      }
      const d = writeF16(out, at + 208, Math.max(...steps) / 127);
      out.fill(0, at, at + 192);
      for (let i = 0; i < 256; i++) {
        const group = i >> 4;
        const scale = d === 0 ? 0 : Math.min(127, Math.round((steps[group] as number) / d));
        const step = d * scale;
        const code = step === 0 ? 32 : Math.min(63, Math.max(0, Math.round((values[from + i] as number) / step) + 32));
        const low = at + lowByte(i);
        const high = at + highByte(i);
        out[at + 192 + group] = scale;
        out[low] = (out[low] as number) | ((code & 15) << (group & 4));
        out[high] = (out[high] as number) | ((code >> 4) << (group & 6));
      }
    }
  },
};

/** Which byte of a block holds the low bits of value `i`; they start at bit 4 in the second 64 of a half, else at 0. */
function lowByte(i: number): number {
  return 64 * (i >> 7) + (i & 63);
}

/** Which byte of a block holds the high bits of value `i`; they start at bit 2 × its quarter of the half. */
function highByte(i: number): number {
  return 128 + 32 * (i >> 7) + (i & 31);
}
