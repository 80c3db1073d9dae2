// Q4_0: d (f16), 16 bytes; the low nibbles are columns 0…15, the high ones 16…31; weight = d · (q - 8).

import { loadF16 } from '../lanes';
import { high4, low4, OFFSET, SCALE } from './tile';

export const BYTES: usize = 72;

export function decode(group: usize, tile: usize): void {
  const scale = loadF16(group);
  for (let i: usize = 0; i < 64; i += 16) {
    const packed = v128.load(group + i, 8);
    v128.store(tile + i, low4(packed));
    v128.store(tile + i, high4(packed), 64);
  }
  v128.store(tile, scale, SCALE);
  v128.store(tile, f32x4.mul(scale, f32x4.splat(-8)), OFFSET);
}
