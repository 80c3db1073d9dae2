/** Buffers that a model takes on the device beside its program's own: while it is loaded, and while it runs. */

import type { Graph } from '../../model/graph.ts';
import type { ModelSpec } from '../../model/spec.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { RUNS_AHEAD } from '../backend.ts';
import { carrierBytes } from './expert-carrier.ts';
import { lateBytesOf } from './late-choices.ts';
import type { GpuProgram } from './layout.ts';
import { mostPiecesAtOnce } from './plane-pool.ts';
import { PULSE_BYTES } from './pulse.ts';
import { resultBytes } from './readback.ts';
import type { Slab } from './slab.ts';
import { stopBytes } from './split-commands.ts';
import { storingBytes } from './store.ts';
import { TIMERS_BYTES } from './timestamps.ts';

export interface Beside {
  readonly name: string;
  readonly bytes: number;
  readonly lifetime: 'model' | 'load';
}

/**
 * @param given.stored what has its place in the program's buffers
 * @param given.rows of a run, at the most, and of those with logits
 */
export function buffersBeside(given: {
  readonly program: GpuProgram;
  readonly graph: Graph;
  readonly spec: Pick<ModelSpec, 'hidden'>;
  readonly weights: Weights;
  readonly stored: readonly Weight[];
  readonly slabs: readonly Slab[];
  readonly rows: number;
  readonly wanted: number;
}): readonly Beside[] {
  const { program, graph, spec, weights, stored, slabs, rows, wanted } = given;
  const { hidden } = spec;
  const { widths, outgoing, logits, mtp } = graph;
  // Whole rows are read of a part that others follow, of any where a fault is looked for, and behind logits for what drafts.
  const made = outgoing === undefined ? wanted * (widths[logits] as number) : 0;
  const read = mtp === undefined ? Math.max(rows * hidden, made) : rows * hidden + made;
  const splits = slabs.length > 0;
  const running = [
    ...(splits ? [{ name: 'experts on their way', bytes: carrierBytes(slabs, weights) }] : []),
    ...(splits
      ? [
          {
            name: 'what stops are for',
            bytes: stopBytes(program.pauses, { rows, hidden }) + lateBytesOf(program, rows) + PULSE_BYTES,
          },
        ]
      : []),
    {
      name: 'results on their way',
      bytes: resultBytes(read) + RUNS_AHEAD * 4 * (program.sampling?.drawnWords ?? 0) + TIMERS_BYTES,
    },
  ].map((buffer) => ({ ...buffer, lifetime: 'model' as const }));
  const all = [...weights.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  const more = storingBytes(stored, mostPiecesAtOnce(all)) - running.reduce((sum, { bytes }) => sum + bytes, 0);
  // They are there when the weights are.
  return more <= 0
    ? running
    : [...running, { name: 'weights on their way, beyond these', bytes: more, lifetime: 'load' }];
}
