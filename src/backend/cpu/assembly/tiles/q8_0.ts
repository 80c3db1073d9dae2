// Q8_0: d (f16), 32 signed bytes; weight = d · q. The tile's bytes are signed.

import { loadF16 } from '../lanes';
import { SCALE } from './tile';

export const BYTES: usize = 136;

export function decode(group: usize, tile: usize): void {
  memory.copy(tile, group + 8, 128);
  v128.store(tile, loadF16(group), SCALE);
}
