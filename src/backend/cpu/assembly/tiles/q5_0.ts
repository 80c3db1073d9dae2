// Q5_0: d (f16), 32 fifth bits, 16 bytes as in Q4_0; weight = d · (q - 16).

import { loadF16 } from '../lanes';
import { high4, low4, OFFSET, SCALE, spreadBits } from './tile';

export const BYTES: usize = 88;

/** The 32 columns of `packed` (64 bytes) with their fifth bits, a word a row. */
// @ts-ignore: decorator
@inline
export function decodeFiveBits(fifth: v128, packed: usize, tile: usize): void {
  for (let i: usize = 0; i < 64; i += 16) {
    const nibbles = v128.load(packed + i);
    const low = i8x16.shl(spreadBits(i32x4.shr_u(fifth, <i32>(i >> 2))), 4);
    const high = i8x16.shl(spreadBits(i32x4.shr_u(fifth, <i32>(i >> 2) + 16)), 4);
    v128.store(tile + i, v128.or(low4(nibbles), low));
    v128.store(tile + i, v128.or(high4(nibbles), high), 64);
  }
}

export function decode(group: usize, tile: usize): void {
  const scale = loadF16(group);
  decodeFiveBits(v128.load(group, 8), group + 24, tile);
  v128.store(tile, scale, SCALE);
  v128.store(tile, f32x4.mul(scale, f32x4.splat(-16)), OFFSET);
}
