/** Which norms may go into the operation that reads what they make: those of whole rows, with weights. */

import type { Graph, Operation, RowNorm, ValueName } from './graph.ts';

/** What such a norm reads, and the norm itself; undefined for any other operation. */
export function rowNormOf(
  operation: Operation,
  widths: Graph['widths'],
): { readonly input: ValueName; readonly norm: RowNorm } | undefined {
  if (operation.kind !== 'norm' || operation.weight === undefined) return undefined;
  if (operation.group !== widths[operation.output]) return undefined;
  const { input, weight, epsilon } = operation;
  return { input, norm: { weight, epsilon } };
}
