/**
 * The experts of some layers by themselves, for a device that computes them for another one: the graph of their `experts`
 * operations.
 */

import { InternalError } from '../errors.ts';
import type { ExpertsOperation, Graph, MoeOperation, Operation, ValueName } from './graph.ts';
import { rowNormOf } from './row-norm.ts';
import type { MoeSpec } from './spec.ts';

/**
 * Whether a layer's experts can be computed by a device that does not know how they were chosen: not where their inputs are
 * weighted, or some that are chosen are none.
 */
export function canBeApart({ router, zeroExperts }: MoeSpec): boolean {
  return router.weighsInput !== true && zeroExperts === undefined;
}

/**
 * One `experts` operation for each of the layers, in order, then what else the device runs. No operation makes what they
 * read: it is the value in front of the layer's norm, the residual stream, if the norm is of whole rows, and the norm goes
 * into the operation, so that what crosses to the device is what the other one has at hand.
 *
 * @param graph that the layers are in, fused or not
 * @param rest the part that the same device runs by itself
 * @throws InternalError `internal` for a layer without experts
 */
export function expertsGraph(graph: Graph, layers: ReadonlySet<number>, rest?: Graph): Graph {
  const makers = new Map(graph.operations.map((operation) => [operation.output, operation]));
  const widths: Record<ValueName, number> = { ...rest?.widths };
  const operations = [...layers]
    .sort((a, b) => a - b)
    .map((layer): Operation => {
      const moe = graph.operations.find((operation) => operation.kind === 'moe' && operation.layer === layer);
      if (moe?.kind !== 'moe') throw new InternalError(`layer ${layer} has no experts that could be computed apart`);
      const operation = expertsOf(moe, makers, graph.widths);
      const width = graph.widths[moe.input] as number;
      widths[operation.input] = width;
      widths[operation.output] = width;
      return operation;
    });
  if (rest === undefined) return { operations, widths, logits: '', hidden: [] };
  return { ...rest, operations: [...operations, ...rest.operations], widths };
}

function expertsOf(
  { layer, input, norm, prefix, moe }: MoeOperation,
  makers: ReadonlyMap<ValueName, Operation>,
  widths: Graph['widths'],
): ExpertsOperation {
  const own = { kind: 'experts', layer, prefix, moe, output: `${prefix}.experts` } as const;
  if (norm !== undefined) return { ...own, input, norm };
  const maker = makers.get(input);
  const rowNorm = maker && rowNormOf(maker, widths);
  return rowNorm === undefined ? { ...own, input } : { ...own, ...rowNorm };
}
