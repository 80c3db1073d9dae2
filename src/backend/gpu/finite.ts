/** Whether values are all finite, where a run is cut short to find the layer that made one that is not, and what is then said. */

import { NonFiniteError } from '../../errors.ts';
import type { Graph } from '../../model/graph.ts';
import type { Step } from '../backend.ts';
import type { Dispatch } from './builder.ts';

/** As fast as JavaScript tells. */
export function allFinite(values: Float32Array): boolean {
  let nothing = 0;
  // x - x is 0 for finite values and NaN for all others.
  for (let i = 0; i < values.length; i++) nothing += (values[i] as number) - (values[i] as number);
  return nothing === 0;
}

/** The value that each of `layers` layers ends with, that of the embedding first, and the dispatch behind the one that makes it. */
export function endsOfLayers(
  { operations }: Graph,
  layers: number,
  dispatches: readonly Pick<Dispatch, 'bindings'>[],
): readonly { readonly number: number; readonly name: string; readonly end: number }[] {
  const last = new Map(operations.map(({ output, layer }) => [layer, output]));
  last.delete(layers);
  return [...last].flatMap(([number, name]) => {
    const at = dispatches.findLastIndex(({ bindings }) =>
      bindings.some((binding) => binding.kind === 'value' && binding.name === name && binding.access === 'write'),
    );
    return at < 0 ? [] : [{ number, name, end: at + 1 }];
  });
}

export function notFinite({ mode, positions, tokens }: Step, layer: number, what: string): NonFiniteError {
  const position = positions[0];
  return new NonFiniteError(
    `${what} is not finite, in the ${mode} of ${tokens.length} rows from position ${position} on;` +
      ' the weights are damaged or the model does not fit its format',
    { data: { layer, mode, position } },
  );
}
