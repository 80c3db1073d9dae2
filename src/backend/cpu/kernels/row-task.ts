/** Operations whose tasks take rows one by one: their entry in the table, and how a task finds its rows. */

import type { Demand } from '../../../model/demands.ts';
import type { Operation } from '../../../model/graph.ts';
import type { Builder } from '../builder.ts';
import type { Place } from '../program.ts';
import type { CpuRow } from '../row.ts';
import type { RunningTask } from '../task.ts';
import { f32Tolerance } from './tolerances.ts';

/** A row that emits one task over rows and, where somebody multiplies its output with block weights, the int8 copy. */
export function rowwise<Made extends Operation>(options: {
  readonly operation: Made['kind'];
  readonly serves?: readonly Demand[];
  readonly accepts?: CpuRow['accepts'];
  readonly emit: (operation: Made, builder: Builder) => void;
}): CpuRow {
  return {
    name: options.operation,
    device: 'cpu',
    operation: options.operation,
    modes: ['prompt', 'step'],
    tolerance: f32Tolerance,
    serves: options.serves,
    accepts: options.accepts ?? (() => true),
    emit(made, builder) {
      const width = builder.width(made.output);
      builder.declareValue(made.output, width);
      options.emit(made as Made, builder);
      builder.encode(made.output, width);
    },
  };
}

/** A task whose units are the stage's own rows. */
export function perRow(run: (row: number) => void): RunningTask {
  return { units: () => 0, run };
}

export function rowOf(place: Place, row: number): number {
  return place.offset + row * place.stride;
}
