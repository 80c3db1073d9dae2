/** The graph of each part of a plan: layers are cut between devices, and experts of layers may be split off to another. */

import { cutGraph } from './cut.ts';
import { expertsGraph } from './experts-graph.ts';
import type { Graph, Operation } from './graph.ts';

/** What a part of a model has. */
export interface PartLayers {
  /** Layers `first` to `end` − 1; none of a part that only computes experts. */
  readonly first: number;
  readonly end: number;
  /** Of these, the layers whose experts are not all here. */
  readonly split?: readonly number[];
  /** Layers of other parts of which it computes experts. */
  readonly experts?: readonly number[];
}

/** Whether a part does more than to compute experts for others. */
export function runsLayers({ first, end, experts }: PartLayers): boolean {
  return end > first || experts === undefined;
}

/** @param parts in the order in which they run */
export function graphsOfParts(graph: Graph, parts: readonly PartLayers[]): readonly Graph[] {
  const running = parts.filter(runsLayers);
  const cut = cutGraph(
    graph,
    running.slice(0, -1).map(({ end }) => end),
  );
  return parts.map((part) => {
    const { split = [], experts = [] } = part;
    const own = cut[running.indexOf(part)];
    const marked = own && markSplit(own, split);
    return experts.length === 0 ? (marked as Graph) : expertsGraph(graph, new Set(experts), marked);
  });
}

function markSplit(graph: Graph, layers: readonly number[]): Graph {
  if (layers.length === 0) return graph;
  const split = new Set(layers);
  const operations = graph.operations.map(
    (operation): Operation =>
      operation.kind === 'moe' && split.has(operation.layer) ? { ...operation, split: true } : operation,
  );
  return { ...graph, operations };
}
