/** What is done to values element by element, row by row: gating, scaling, sums, values side by side. */

import type {
  AddOperation,
  ConcatOperation,
  GateOperation,
  GluOperation,
  ScaleOperation,
} from '../../../model/graph.ts';
import type { Activation } from '../../../model/spec.ts';
import type { Place, Task } from '../program.ts';
import type { CpuRow } from '../row.ts';
import type { KernelCall, RunningTask, WorkerView } from '../task.ts';
import { gluOf, servedActivations } from './activation.ts';
import { perRow, rowOf, rowwise } from './row-task.ts';

export const elementwiseRows: readonly CpuRow[] = [
  rowwise<GluOperation>({
    operation: 'glu',
    serves: servedActivations,
    emit({ gate, up, output, activation }, builder) {
      const width = builder.width(output);
      builder.emit({
        space: 'rows',
        reads: [gate, up],
        writes: [output],
        make: (at) => ({
          kind: 'glu',
          gate: at.value(gate),
          up: at.value(up),
          output: at.value(output),
          width,
          activation,
        }),
      });
    },
  }),
  rowwise<GateOperation>({
    operation: 'gate',
    emit({ input, gate, output, activation }, builder) {
      const gates = builder.width(gate);
      builder.emit({
        space: 'rows',
        reads: [input, gate],
        writes: [output],
        make: (at) => ({
          kind: 'gate',
          input: at.value(input),
          gate: at.value(gate),
          output: at.value(output),
          gates,
          share: builder.width(output) / gates,
          softplus: activation === 'softplus',
        }),
      });
    },
  }),
  rowwise<ScaleOperation>({
    operation: 'scale',
    serves: ['a scale on part of a row'],
    emit({ input, factor, weight, rest = 0, output }, builder) {
      const width = builder.width(output);
      builder.emit({
        space: 'rows',
        reads: [input],
        writes: [output],
        make: (at) => ({
          kind: 'scale',
          input: at.value(input),
          output: at.value(output),
          factor,
          weight: weight === undefined ? 0 : at.weight(weight).offset,
          width: width - rest,
          rest,
        }),
      });
    },
  }),
  rowwise<AddOperation>({
    operation: 'add',
    emit({ left, right, output }, builder) {
      const width = builder.width(output);
      builder.emit({
        space: 'rows',
        reads: [left, right],
        writes: [output],
        make: (at) => ({ kind: 'add', left: at.value(left), right: at.value(right), output: at.value(output), width }),
      });
    },
  }),
  rowwise<ConcatOperation>({
    operation: 'concat',
    emit({ left, right, output }, builder) {
      const bytes = [builder.width(left) * 4, builder.width(right) * 4];
      builder.emit({
        space: 'rows',
        reads: [left, right],
        writes: [output],
        make: (at) => ({ kind: 'concat', parts: [at.value(left), at.value(right)], bytes, output: at.value(output) }),
      });
    },
  }),
];

export function makeGlu(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly gate: Place;
    readonly up: Place;
    readonly output: Place;
    readonly width: number;
    readonly activation: Activation;
  };
  const glu = gluOf(worker.home.kernels, task.activation);
  return perRow((row) => {
    glu(rowOf(task.gate, row), rowOf(task.up, row), rowOf(task.output, row), task.width);
  });
}

export function makeGate(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly input: Place;
    readonly gate: Place;
    readonly output: Place;
    readonly gates: number;
    readonly share: number;
    readonly softplus: boolean;
  };
  const { gates, share } = task;
  const gate = worker.home.kernels.gate as KernelCall;
  const softplus = task.softplus ? 1 : 0;
  return perRow((row) => {
    gate(rowOf(task.input, row), rowOf(task.gate, row), rowOf(task.output, row), gates, share, softplus);
  });
}

export function makeScale(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly input: Place;
    readonly output: Place;
    readonly factor: number;
    /** Address of one number more, or 0. */
    readonly weight: number;
    readonly width: number;
    /** Elements behind those that are multiplied. */
    readonly rest: number;
  };
  const { factor, weight, width, rest } = task;
  const { bytes, f32, kernels } = worker.home;
  const scale = kernels.scale as KernelCall;
  return perRow((row) => {
    const own = weight === 0 ? 1 : (f32[weight / 4] as number);
    const [from, to] = [rowOf(task.input, row), rowOf(task.output, row)];
    scale(from, to, factor * own, width);
    if (rest > 0) bytes.copyWithin(to + width * 4, from + width * 4, from + (width + rest) * 4);
  });
}

export function makeAdd(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly left: Place;
    readonly right: Place;
    readonly output: Place;
    readonly width: number;
  };
  const add = worker.home.kernels.add as KernelCall;
  return perRow((row) => {
    add(rowOf(task.left, row), rowOf(task.right, row), rowOf(task.output, row), task.width);
  });
}

export function makeConcat(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly parts: readonly Place[];
    readonly bytes: readonly number[];
    readonly output: Place;
  };
  const { bytes } = worker.home;
  return perRow((row) => {
    let to = rowOf(task.output, row);
    for (const [index, part] of task.parts.entries()) {
      const from = rowOf(part, row);
      const length = task.bytes[index] as number;
      bytes.copyWithin(to, from, from + length);
      to += length;
    }
  });
}
