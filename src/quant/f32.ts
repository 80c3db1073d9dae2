/** F32: plain IEEE single-precision values, 4 bytes each, least significant byte first. */

import type { QuantFormat } from './format.ts';

export const f32: QuantFormat = {
  id: 'F32',
  ggufType: 0,
  blockLength: 1,
  blockBytes: 4,

  // Typed arrays are little-endian on every engine that runs WebAssembly threads, so the bytes are already the values.
  decode(bytes, byteOffset, out, outOffset, blocks) {
    const target = new Uint8Array(out.buffer, out.byteOffset + 4 * outOffset, 4 * blocks);
    target.set(bytes.subarray(byteOffset, byteOffset + 4 * blocks));
  },

  encode(values, offset, out, outOffset, blocks) {
    out.set(new Uint8Array(values.buffer, values.byteOffset + 4 * offset, 4 * blocks), outOffset);
  },
};
