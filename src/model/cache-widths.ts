/** How wide a layer's cache is: what every backend and the plan size it by. */

import type { AttentionSpec } from './spec.ts';

/** Elements that a layer's cache keeps for a position, of keys and of values. */
export function cacheWidths({ kvHeads, headDim, valueDim, latent }: AttentionSpec): {
  readonly keys: number;
  readonly values: number;
} {
  // A latent is in its key.
  return { keys: kvHeads * headDim, values: latent === undefined ? kvHeads * valueDim : 0 };
}
