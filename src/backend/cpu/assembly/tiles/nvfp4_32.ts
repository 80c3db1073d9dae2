// NVFP4 in blocks of 32: two UE4M3 scales, 16 bytes of E2M1; each 8 bytes hold 16 columns, the first 8 in the low nibbles. As
// in `nvfp4.ts` the tile holds twice the value plus 12.

import { E2M1_ZERO, e2m1 } from './mxfp4';
import { halfScale } from './nvfp4';
import { byteOfLane, high4, low4, SCALE, SCALE_SECOND, ZERO } from './tile';

export const BYTES: usize = 72;

export function decode(group: usize, tile: usize): void {
  const scales = i32x4.extend_low_i16x8_u(v128.load64_zero(group));
  for (let half: usize = 0; half < 2; half++) {
    const from = group + 8 + (half << 5);
    const to = tile + (half << 6);
    for (let i: usize = 0; i < 32; i += 16) {
      const nibbles = v128.load(from + i);
      v128.store(to + i, e2m1(low4(nibbles)));
      v128.store(to + i, e2m1(high4(nibbles)), 32);
    }
  }
  v128.store(tile, halfScale(byteOfLane(scales, 0)), SCALE);
  v128.store(tile, halfScale(byteOfLane(scales, 1)), SCALE_SECOND);
  v128.store(tile, i16x8.splat(E2M1_ZERO), ZERO);
}
