// Q5_1: d, m (f16), 32 fifth bits, 16 bytes as in Q4_0; weight = d · q + m.

import { loadF16 } from '../lanes';
import { decodeFiveBits } from './q5_0';
import { OFFSET, SCALE } from './tile';

export const BYTES: usize = 96;

export function decode(group: usize, tile: usize): void {
  decodeFiveBits(v128.load(group, 16), group + 32, tile);
  v128.store(tile, loadF16(group), SCALE);
  v128.store(tile, loadF16(group, 8), OFFSET);
}
