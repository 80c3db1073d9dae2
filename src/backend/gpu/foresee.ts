/** Which layers' choices of experts can be foreseen by their routers, on what the layer with experts before them leaves. */

import type { Graph, MoeOperation } from '../../model/graph.ts';

/** @returns nothing where that layer does not norm its rows itself, or this one leaves something else than them */
export function foreseenAfter(fused: Graph, { layer: before, add }: MoeOperation): MoeOperation | undefined {
  const next = fused.operations.find(({ kind, layer }) => kind === 'moe' && layer > before);
  return next?.kind === 'moe' && next.norm !== undefined && add !== undefined ? next : undefined;
}
