// Q4_1: d, m (f16), 16 bytes as in Q4_0; weight = d · q + m.

import { loadF16 } from '../lanes';
import { high4, low4, OFFSET, SCALE } from './tile';

export const BYTES: usize = 80;

export function decode(group: usize, tile: usize): void {
  for (let i: usize = 0; i < 64; i += 16) {
    const packed = v128.load(group + i, 16);
    v128.store(tile + i, low4(packed));
    v128.store(tile + i, high4(packed), 64);
  }
  v128.store(tile, loadF16(group), SCALE);
  v128.store(tile, loadF16(group, 8), OFFSET);
}
