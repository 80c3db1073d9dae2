/** What a call for single experts must be before any of it is computed: kernels trust every number they find. */

import { InternalError } from '../errors.ts';
import type { ExpertsOperation, Graph } from '../model/graph.ts';
import type { ExpertRunner, ExpertWork } from './backend.ts';

/** The `experts` operations of a graph by their layer. */
export function expertsByLayer({ operations }: Graph): ReadonlyMap<number, ExpertsOperation> {
  return new Map(
    operations.flatMap((operation) => (operation.kind === 'experts' ? [[operation.layer, operation]] : [])),
  );
}

/**
 * @param width of a row
 * @returns how many rows there are
 * @throws InternalError `internal` for what does not fit, and for rows and experts that are not there
 */
export function checkExpertWork(
  { layer, rows, rowOf, expertOf }: ExpertWork,
  given: { readonly limits: ExpertRunner['limits']; readonly width: number; readonly experts: number },
): number {
  const { limits, width, experts } = given;
  const bad = (what: string) => new InternalError(`the experts of layer ${layer} were asked for ${what}`);
  const count = rows.length / width;
  if (!Number.isInteger(count)) throw bad(`rows of ${rows.length} values, expected a multiple of ${width}`);
  if (count > limits.rows) throw bad(`${count} rows, expected at most ${limits.rows}`);
  const pairs = rowOf.length;
  if (expertOf.length !== pairs) throw bad(`${pairs} rows of pairs with ${expertOf.length} experts`);
  if (pairs > limits.pairs) throw bad(`${pairs} pairs, expected at most ${limits.pairs}`);
  for (let pair = 0; pair < pairs; pair++) {
    const row = rowOf[pair] as number;
    const expert = expertOf[pair] as number;
    if (row < 0 || row >= count) throw bad(`row ${row} in pair ${pair}, of ${count} rows`);
    if (expert < 0 || expert >= experts) throw bad(`expert ${expert} in pair ${pair}, of ${experts} experts`);
  }
  return count;
}
