/**
 * Q4_K: 256 values in 144 bytes, eight groups of 32.
 *
 * | bytes | what |
 * |---|---|
 * | 0–1 | `d`, f16 |
 * | 2–3 | `dmin`, f16 |
 * | 4–15 | a scale and a minimum a group, 6 bits each: see k-scales.ts |
 * | 16–143 | codes of 4 bits: 32 bytes for each pair of groups, the first in the low halves, the second in the high |
 *
 * value = d × scale × code − dmin × minimum
 */

import type { QuantFormat } from './format.ts';
import { groupMinimum, groupScale, packGroupScales } from './k-scales.ts';
import { readF16, writeF16 } from './scalars.ts';

export const q4_k: QuantFormat = {
  id: 'Q4_K',
  ggufType: 12,
  blockLength: 256,
  blockBytes: 144,

  decode(bytes, byteOffset, out, outOffset, blocks) {
    let at = byteOffset;
    let to = outOffset;
    for (let block = 0; block < blocks; block++, at += 144) {
      const d = readF16(bytes, at);
      const dmin = readF16(bytes, at + 2);
      for (let group = 0; group < 8; group++, to += 32) {
        const scale = d * groupScale(bytes, at + 4, group);
        const minimum = dmin * groupMinimum(bytes, at + 4, group);
        const codes = at + 16 + 32 * (group >> 1);
        const shift = 4 * (group & 1);
        for (let j = 0; j < 32; j++) {
          out[to + j] = scale * (((bytes[codes + j] as number) >> shift) & 15) - minimum;
        }
      }
    }
  },

  // A group spans from its least value (at most 0: a minimum is subtracted and never negative) to its greatest.
  encode(values, offset, out, outOffset, blocks) {
    const steps = new Float32Array(8);
    const lows = new Float32Array(8);
    const scales = new Uint8Array(8);
    const minima = new Uint8Array(8);
    for (let block = 0; block < blocks; block++) {
      const from = offset + 256 * block;
      const at = outOffset + 144 * block;
      for (let group = 0; group < 8; group++) {
        let low = 0;
        let high = -Infinity;
        for (let j = 0; j < 32; j++) {
          const value = values[from + 32 * group + j] as number;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
        steps[group] = Math.max(0, high - low) / 15;
        lows[group] = -low;
      }
      const d = writeF16(out, at, Math.max(...steps) / 63);
      const dmin = writeF16(out, at + 2, Math.max(...lows) / 63);
      for (let group = 0; group < 8; group++) {
        scales[group] = d === 0 ? 0 : Math.min(63, Math.round((steps[group] as number) / d));
        minima[group] = dmin === 0 ? 0 : Math.min(63, Math.round((lows[group] as number) / dmin));
      }
      packGroupScales(out, at + 4, scales, minima);
      out.fill(0, at + 16, at + 144);
      for (let i = 0; i < 256; i++) {
        const group = i >> 5;
        const step = d * (scales[group] as number);
        const height = (values[from + i] as number) + dmin * (minima[group] as number);
        const code = step === 0 ? 0 : Math.min(15, Math.max(0, Math.round(height / step)));
        const byte = at + 16 + 32 * (group >> 1) + (i & 31);
        out[byte] = (out[byte] as number) | (code << (4 * (group & 1)));
      }
    }
  },
};
