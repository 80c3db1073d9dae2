/** Which layers' choices of experts can be foreseen by their routers, on what the layer with experts before them leaves. */

import type { Graph, MoeOperation } from '../../model/graph.ts';

/**
 * @returns nothing where that layer does not norm its rows itself, its router has rows of its own, or this one leaves something
 * else than the next one's rows
 */
export function foreseenAfter(fused: Graph, { layer: before, add }: MoeOperation): MoeOperation | undefined {
  const next = fused.operations.find(({ kind, layer }) => kind === 'moe' && layer > before);
  if (next?.kind !== 'moe' || next.norm === undefined || next.routerInput !== undefined) return undefined;
  return add === undefined ? undefined : next;
}
