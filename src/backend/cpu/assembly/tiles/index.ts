// The table of block formats: a number each (`kernels/formats.ts` has the same), how many tiles a block makes, and how the
// dot product adds its bytes up.

import * as iq4_nl from './iq4_nl';
import * as iq4_xs from './iq4_xs';
import * as mxfp4 from './mxfp4';
import * as nvfp4 from './nvfp4';
import * as nvfp4_32 from './nvfp4_32';
import * as q2_k from './q2_k';
import * as q3_k from './q3_k';
import * as q4_0 from './q4_0';
import * as q4_1 from './q4_1';
import * as q4_k from './q4_k';
import * as q5_0 from './q5_0';
import * as q5_1 from './q5_1';
import * as q5_k from './q5_k';
import * as q6_k from './q6_k';
import * as q8_0 from './q8_0';
import { TILE } from './tile';

/** Bytes of a group's block (four rows). */
// @ts-ignore: decorator
@inline
export function blockBytes(format: i32): usize {
  switch (format) {
    case 0: return q4_0.BYTES;
    case 1: return q4_1.BYTES;
    case 2: return q5_0.BYTES;
    case 3: return q5_1.BYTES;
    case 4: return q8_0.BYTES;
    case 5: return q2_k.BYTES;
    case 6: return q3_k.BYTES;
    case 7: return q4_k.BYTES;
    case 8: return q5_k.BYTES;
    case 9: return q6_k.BYTES;
    case 10: return iq4_nl.BYTES;
    case 11: return iq4_xs.BYTES;
    case 12: return mxfp4.BYTES;
    case 13: return nvfp4.BYTES;
    case 14: return nvfp4_32.BYTES;
  }
  unreachable();
  return 0;
}

/** Tiles a block makes: columns / 32. */
// @ts-ignore: decorator
@inline
export function tilesOf(format: i32): i32 {
  switch (format) {
    case 5: case 6: case 7: case 8: case 9: case 11: return 8;
    case 13: return 2;
    default: return 1;
  }
}

/**
 * How products add up, see `dot.ts`, and what their activations are (`formats.ts` has the same). With int8: 0, bytes to 15; 1,
 * to 31; 2, halves, to 31; 3, halves with a zero. With words: 4, signed bytes. With digits: 5, bytes to 15; 6, to 31.
 */
// @ts-ignore: decorator
@inline
export function kindOf(format: i32): i32 {
  switch (format) {
    case 0: case 1: return 5;
    case 2: case 3: return 6;
    case 8: case 12: return 1;
    case 5: return 2;
    case 6: case 9: case 13: case 14: return 3;
    case 4: case 10: case 11: return 4;
    default: return 0;
  }
}

/** Decodes blocks from `group` on until `tiles` tiles stand at `tile`. */
export function decodeTiles(format: i32, group: usize, tile: usize, tiles: i32): void {
  const step = tilesOf(format);
  const bytes = blockBytes(format);
  for (let done = 0; done < tiles; done += step) {
    switch (format) {
      case 0: q4_0.decode(group, tile); break;
      case 1: q4_1.decode(group, tile); break;
      case 2: q5_0.decode(group, tile); break;
      case 3: q5_1.decode(group, tile); break;
      case 4: q8_0.decode(group, tile); break;
      case 5: q2_k.decode(group, tile); break;
      case 6: q3_k.decode(group, tile); break;
      case 7: q4_k.decode(group, tile); break;
      case 8: q5_k.decode(group, tile); break;
      case 9: q6_k.decode(group, tile); break;
      case 10: iq4_nl.decode(group, tile); break;
      case 11: iq4_xs.decode(group, tile); break;
      case 12: mxfp4.decode(group, tile); break;
      case 13: nvfp4.decode(group, tile); break;
      case 14: nvfp4_32.decode(group, tile); break;
      default: unreachable();
    }
    group += bytes;
    tile += <usize>step * TILE;
  }
}
