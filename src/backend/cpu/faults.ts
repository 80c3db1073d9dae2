/** What a fault of the pool means to a person. */

import { NonFiniteError } from '../../errors.ts';
import { Fault } from './control.ts';
import type { Pool } from './pool.ts';

const texts: Readonly<Record<number, string>> = {
  [Fault.notFinite]: 'a value is not finite; the weights are damaged or the model does not fit its format',
  [Fault.router]: 'the router gave NaN; the weights are damaged',
  [Fault.cache]: 'a key or value is not finite or too large for the cache; ask for one of f32 (--kv f32)',
};

/**
 * Throws for the pool's first fault, if there was one.
 * @param what was computed, as a phrase
 * @throws NonFiniteError `non_finite` with the layer beside `data`
 */
export function throwFault(pool: Pool, what: string, data: Readonly<Record<string, unknown>>): void {
  const fault = pool.control.takeFault();
  if (fault === undefined) return;
  if (fault.kind === Fault.crash) throw pool.crash();
  const { kind, layer } = fault;
  const where = layer < 0 ? 'the embedding' : `layer ${layer} (blk.${layer})`;
  throw new NonFiniteError(`${where}: ${texts[kind]}, in ${what}`, { data: { layer, ...data } });
}
