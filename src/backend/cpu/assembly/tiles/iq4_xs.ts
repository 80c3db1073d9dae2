// IQ4_XS: d (f16), eight pairs of high scale bits (u16), eight low scale nibbles (4 bytes), eight blocks of 16 bytes as in
// IQ4_NL; weight = d · (scale - 32) · level. The tile's bytes are signed.

import { loadF16 } from '../lanes';
import { decodeLevels } from './iq4_nl';
import { SCALE, TILE } from './tile';

export const BYTES: usize = 544;

export function decode(group: usize, tile: usize): void {
  const d = loadF16(group);
  const high = v128.load_ext<u16>(group, 8);
  const low = v128.load(group, 16);
  for (let block = 0; block < 8; block++) {
    decodeLevels(group + 32 + (<usize>block << 6), tile);
    const nibble = v128.and(i32x4.shr_u(low, block << 2), i32x4.splat(15));
    const pair = v128.and(i32x4.shr_u(high, block << 1), i32x4.splat(3));
    const scale = i32x4.sub(v128.or(nibble, i32x4.shl(pair, 4)), i32x4.splat(32));
    v128.store(tile, f32x4.mul(d, f32x4.convert_i32x4_s(scale)), SCALE);
    tile += TILE;
  }
}
