/** What is done to each row by itself: embedding lookup, rows from outside, norms, rotation, gating, sums, quantisation. */

import type {
  AddOperation,
  ConcatOperation,
  EmbedOperation,
  GluOperation,
  IncomingOperation,
  NormOperation,
  Operation,
  RopeOperation,
} from '../../../model/graph.ts';
import type { FormatId } from '../../../quant/index.ts';
import type { Builder } from '../builder.ts';
import { Fault } from '../control.ts';
import { acceptsWeight, type CpuFormat, cpuFormat, cpuFormats, type Encoding, groupBytes } from '../formats.ts';
import type { Place, RopePlace, Task } from '../program.ts';
import type { CpuRow } from '../row.ts';
import type { Arena, KernelCall, RunningTask, WorkerView } from '../task.ts';
import { f32Tolerance } from './tolerances.ts';

/** Scratch for decoding a row: 8 tiles, and the row. */
const decodeScratch = (columns: number) => 8 * 192 + columns * 4;

/** A row that emits one task over rows and, where somebody multiplies its output with block weights, the int8 copy. */
function rowwise<Made extends Operation>(options: {
  readonly operation: Made['kind'];
  readonly accepts?: CpuRow['accepts'];
  readonly emit: (operation: Made, builder: Builder) => void;
}): CpuRow {
  return {
    name: options.operation,
    device: 'cpu',
    operation: options.operation,
    modes: ['prompt', 'step'],
    tolerance: f32Tolerance,
    accepts: options.accepts ?? (() => true),
    emit(made, builder) {
      const width = builder.width(made.output);
      builder.declareValue(made.output, width);
      options.emit(made as Made, builder);
      builder.encode(made.output, width);
    },
  };
}

const embedRows: readonly CpuRow[] = cpuFormats.map(({ id }) => ({
  ...rowwise<EmbedOperation>({
    operation: 'embed',
    accepts(request) {
      const { weight } = request.operation as EmbedOperation;
      const { format, shape } = request.weights[weight] as { format: string; shape: readonly number[] };
      return format === id ? acceptsWeight(weight, format, shape[1] as number) : `takes ${id}, found ${format}`;
    },
    emit({ weight, output }, builder) {
      const columns = builder.width(output);
      builder.emit({
        space: 'rows',
        reads: [],
        writes: [output],
        weights: [weight],
        scratch: decodeScratch(columns),
        make: (at) => ({
          kind: 'embed',
          arena: at.weight(weight).arena,
          weight: at.weight(weight).offset,
          format: id,
          columns,
          output: at.value(output),
          tokens: at.step.tokens,
        }),
      });
    },
  }),
  name: `embed-${id.toLowerCase()}`,
  layout: 'interleave4',
}));

export const rowwiseRows: readonly CpuRow[] = [
  ...embedRows,
  rowwise<IncomingOperation>({
    operation: 'incoming',
    emit({ output }, builder) {
      const bytes = builder.width(output) * 4;
      builder.emit({
        space: 'rows',
        reads: [],
        writes: [output],
        make: (at) => ({ kind: 'incoming', input: at.step.incoming, bytes, output: at.value(output) }),
      });
    },
  }),
  rowwise<NormOperation>({
    operation: 'norm',
    emit({ input, weight, output, epsilon, group, layer, mtp }, builder) {
      const width = builder.width(output);
      builder.emit({
        space: 'rows',
        reads: [input],
        writes: [output],
        make: (at) => ({
          kind: 'norm',
          input: at.value(input),
          output: at.value(output),
          weight: at.weight(weight).offset,
          epsilon,
          group,
          groups: width / group,
          // The norm that opens a block finds what came before it: the layer's own attention, or the layer before.
          blame:
            group === builder.spec.hidden && !weight.endsWith('feedForward.norm') && mtp !== true ? layer - 1 : layer,
        }),
      });
    },
  }),
  rowwise<RopeOperation>({
    operation: 'rope',
    emit({ input, output, headDim, rope }, builder) {
      const heads = builder.width(output) / headDim;
      builder.emit({
        space: 'rows',
        reads: [input],
        writes: [output],
        make: (at) => ({
          kind: 'rope',
          input: at.value(input),
          output: at.value(output),
          heads,
          headDim,
          half: rope.pairing === 'half',
          table: at.rope(rope),
          positions: at.step.positions,
        }),
      });
    },
  }),
  rowwise<GluOperation>({
    operation: 'glu',
    accepts: ({ operation }) =>
      (operation as GluOperation).activation === 'silu' ||
      `gates with silu, found ${(operation as GluOperation).activation}`,
    emit({ gate, up, output }, builder) {
      const width = builder.width(output);
      builder.emit({
        space: 'rows',
        reads: [gate, up],
        writes: [output],
        make: (at) => ({ kind: 'siluMul', gate: at.value(gate), up: at.value(up), output: at.value(output), width }),
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

/** A task whose units are the stage's own rows. */
function perRow(run: (row: number) => void): RunningTask {
  return { units: () => 0, run };
}

export function makeEmbed(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly arena: number;
    readonly weight: number;
    readonly format: FormatId;
    readonly columns: number;
    readonly output: Place;
    readonly tokens: number;
  };
  const arena = worker.arenas[task.arena] as Arena;
  const format = cpuFormat(task.format) as CpuFormat;
  const bytes = groupBytes(task.format, task.columns);
  const decode = (format.kind === 'block' ? arena.kernels.decodeRow : arena.kernels.decodeRowFloat) as KernelCall;
  const { home } = worker;
  return perRow((row) => {
    const token = home.i32[task.tokens / 4 + row] as number;
    const to = task.output.offset + row * task.output.stride;
    const inside = arena === home ? to : arena.scratch + 8 * 192;
    decode(format.number, task.weight + (token >> 2) * bytes, task.columns, token & 3, inside, arena.scratch);
    if (arena !== home) home.bytes.set(arena.bytes.subarray(inside, inside + task.columns * 4), to);
  });
}

export function makeIncoming(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & { readonly input: number; readonly bytes: number; readonly output: Place };
  const { bytes } = worker.home;
  return perRow((row) => {
    const from = task.input + row * task.bytes;
    bytes.copyWithin(rowOf(task.output, row), from, from + task.bytes);
  });
}

export function makeNorm(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly input: Place;
    readonly output: Place;
    readonly weight: number;
    readonly epsilon: number;
    readonly group: number;
    readonly groups: number;
    readonly blame: number;
  };
  const rmsNorm = worker.home.kernels.rmsNorm as KernelCall;
  // One weight for every group (a norm of each head), or the whole row at once.
  return perRow((row) => {
    let from = task.input.offset + row * task.input.stride;
    let to = task.output.offset + row * task.output.stride;
    for (let group = 0; group < task.groups; group++) {
      const mean = rmsNorm(from, task.weight, to, task.group, task.epsilon);
      if (!Number.isFinite(mean)) worker.control.fault(Fault.notFinite, task.blame);
      from += task.group * 4;
      to += task.group * 4;
    }
  });
}

export function makeRope(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly input: Place;
    readonly output: Place;
    readonly heads: number;
    readonly headDim: number;
    readonly half: boolean;
    readonly table: RopePlace;
    readonly positions: number;
  };
  const { kernels, i32 } = worker.home;
  const rope = kernels.rope as KernelCall;
  const { offset, pairs } = task.table;
  return perRow((row) => {
    const position = i32[task.positions / 4 + row] as number;
    rope(
      task.input.offset + row * task.input.stride,
      task.output.offset + row * task.output.stride,
      offset + position * pairs * 8,
      task.heads,
      task.headDim,
      pairs,
      task.half ? 1 : 0,
    );
  });
}

export function makeSiluMul(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly gate: Place;
    readonly up: Place;
    readonly output: Place;
    readonly width: number;
  };
  const siluMul = worker.home.kernels.siluMul as KernelCall;
  return perRow((row) => {
    siluMul(rowOf(task.gate, row), rowOf(task.up, row), rowOf(task.output, row), task.width);
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

export function makeEncode(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly input: Place;
    readonly output: Place;
    readonly blocks: number;
    readonly encoding: Exclude<Encoding, 'f32'>;
  };
  const encode = encoder(worker, task.encoding);
  return perRow((row) => encode(rowOf(task.input, row), rowOf(task.output, row), task.blocks));
}

/** Encodes so many blocks of 32 f32, from one address in arena 0 to another. */
export function encoder(
  worker: WorkerView,
  encoding: Exclude<Encoding, 'f32'>,
): (input: number, output: number, blocks: number) => void {
  const encode = worker.home.kernels[encoding === 'int8' ? 'encodeInt8' : 'encodeInt16'] as KernelCall;
  const digits = encoding === 'digits' ? 1 : 0;
  return (input, output, blocks) => void encode(input, output, blocks, digits);
}

export function rowOf(place: Place, row: number): number {
  return place.offset + row * place.stride;
}
