/** Matrix products: one row a weight format, for projections and for the head. */

import type { HeadOperation, LinearOperation } from '../../../model/graph.ts';
import type { FormatId } from '../../../quant/index.ts';
import { type Builder, unitGroupsOf } from '../builder.ts';
import { acceptsWeight, cpuFormats, groupsOf } from '../formats.ts';
import type { Place, Task } from '../program.ts';
import type { CpuRow } from '../row.ts';
import type { KernelCall, RunningTask, WorkerView } from '../task.ts';
import { Product, productScratch } from './product.ts';
import { encodingTolerances } from './tolerances.ts';

interface LinearTask extends Task {
  readonly arena: number;
  readonly weight: number;
  readonly format: FormatId;
  readonly columns: number;
  readonly groups: number;
  readonly input: Place;
  readonly output: Place;
  /** Address of the bias (f32), or 0. */
  readonly bias: number;
  /** Address of the list of wanted rows, or 0 for all. */
  readonly wanted: number;
  /** What the products y become cap · tanh(y / cap) with. */
  readonly softcap?: number;
}

export const linearRows: readonly CpuRow[] = (['linear', 'head'] as const).flatMap((operation) =>
  cpuFormats.map(
    ({ id, activations }): CpuRow => ({
      name: `${operation}-${id.toLowerCase()}`,
      device: 'cpu',
      operation,
      modes: ['prompt', 'step'],
      tolerance: encodingTolerances[activations],
      layout: 'interleave4',
      serves: operation === 'head' ? ['a soft cap on logits'] : [],
      accepts(request) {
        const { weight } = request.operation as LinearOperation | HeadOperation;
        const { format, shape } = request.weights[weight] as { format: string; shape: readonly number[] };
        if (format !== id) return `takes ${id}, found ${format}`;
        if (shape.length !== 2) return `needs a matrix, found [${shape.join(', ')}]`;
        return acceptsWeight(weight, format, shape[1] as number);
      },
      emit: (made, builder) => emitLinear(made as LinearOperation | HeadOperation, builder),
    }),
  ),
);

function emitLinear(operation: LinearOperation | HeadOperation, builder: Builder): void {
  const { input, weight, output } = operation;
  const head = operation.kind === 'head';
  const bias = operation.kind === 'linear' ? operation.bias : undefined;
  const softcap = operation.kind === 'head' ? operation.softcap : undefined;
  const width = builder.width(output);
  builder.declareValue(output, width, head ? builder.wanted : builder.rows);
  const { format, shape } = builder.weight(weight);
  const columns = shape[1] as number;
  const operand = builder.operand(input, weight);
  builder.emit({
    space: 'units',
    reads: [operand],
    writes: [output],
    weights: [weight],
    optional: head,
    // One worker alone has the longest units.
    scratch: productScratch(builder.operandStride(weight), unitGroupsOf(groupsOf(width), 1)),
    make: (at): LinearTask => ({
      kind: 'linear',
      arena: at.weight(weight).arena,
      weight: at.weight(weight).offset,
      format,
      columns,
      groups: groupsOf(width),
      input: at.value(operand),
      output: at.value(output),
      bias: bias === undefined ? 0 : at.weight(bias).offset,
      wanted: head ? at.step.wanted : 0,
      softcap,
    }),
  });
}

export function makeLinear(data: Task, worker: WorkerView): RunningTask {
  const task = data as LinearTask;
  const product = new Product(worker, {
    arena: task.arena,
    format: task.format,
    columns: task.columns,
    xStride: task.input.stride,
  });
  const unitGroups = unitGroupsOf(task.groups, worker.control.threads);
  const units = Math.ceil(task.groups / unitGroups);
  const count = () => (task.wanted === 0 ? worker.step.rows : worker.step.wanted);
  return {
    units: () => (count() === 0 ? 0 : units),
    run(unit) {
      const first = unit * unitGroups;
      const groups = Math.min(unitGroups, task.groups - first);
      const out = task.output.offset + first * 16;
      product.multiply({
        weight: task.weight + first * product.groupBytes,
        groups,
        x: task.input.offset,
        xIndex: task.wanted,
        count: count(),
        out,
        outStride: task.output.stride,
        outIndex: 0,
        key: 0,
      });
      const { bias, softcap } = task;
      if (bias === 0 && softcap === undefined) return;
      const { kernels } = worker.home;
      for (let row = 0; row < count(); row++) {
        const at = out + row * task.output.stride;
        if (bias !== 0) (kernels.add as KernelCall)(at, bias + first * 16, at, groups * 4);
        if (softcap !== undefined) (kernels.softcap as KernelCall)(at, groups * 4, softcap);
      }
    },
  };
}
