/** What is done to each row by itself: embedding lookup, rows from outside, norms, rotation, gating, sums, quantisation. */

import type { Demand } from '../../../model/demands.ts';
import type {
  AddOperation,
  ConcatOperation,
  EmbedOperation,
  GateOperation,
  GluOperation,
  IncomingOperation,
  NormOperation,
  Operation,
  RopeOperation,
  ScaleOperation,
} from '../../../model/graph.ts';
import type { Activation } from '../../../model/spec.ts';
import type { FormatId } from '../../../quant/index.ts';
import type { Builder } from '../builder.ts';
import { Fault } from '../control.ts';
import { acceptsWeight, type CpuFormat, cpuFormat, cpuFormats, type Encoding, groupBytes } from '../formats.ts';
import type { Place, RopePlace, Task } from '../program.ts';
import type { CpuRow } from '../row.ts';
import type { Arena, KernelCall, RunningTask, WorkerView } from '../task.ts';
import { gluOf, servedActivations } from './activation.ts';
import { f32Tolerance } from './tolerances.ts';

/** Scratch for decoding a row: 8 tiles, and the row. */
const decodeScratch = (columns: number) => 8 * 192 + columns * 4;

/** A row that emits one task over rows and, where somebody multiplies its output with block weights, the int8 copy. */
function rowwise<Made extends Operation>(options: {
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

const embedRows: readonly CpuRow[] = cpuFormats.map(({ id }) => ({
  ...rowwise<EmbedOperation>({
    operation: 'embed',
    serves: ['a scale on embeddings'],
    accepts(request) {
      const { weight } = request.operation as EmbedOperation;
      const { format, shape } = request.weights[weight] as { format: string; shape: readonly number[] };
      return format === id ? acceptsWeight(weight, format, shape[1] as number) : `takes ${id}, found ${format}`;
    },
    emit({ weight, output, scale }, builder) {
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
          scale,
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
    serves: ['norms without weights', 'a norm of part of a row'],
    emit({ input, weight, output, epsilon, group, rest = 0, layer, mtp }, builder) {
      const width = builder.width(output);
      builder.emit({
        space: 'rows',
        reads: [input],
        writes: [output],
        make: (at) => ({
          kind: 'norm',
          input: at.value(input),
          output: at.value(output),
          weight: weight === undefined ? 0 : at.weight(weight).offset,
          epsilon,
          group,
          groups: (width - rest) / group,
          rest,
          // The norm that opens a layer, or follows the last one, finds what came before it.
          blame: mtp !== true && (weight === 'finalNorm' || weight?.endsWith('.attention.norm')) ? layer - 1 : layer,
        }),
      });
    },
  }),
  rowwise<RopeOperation>({
    operation: 'rope',
    serves: ['a rotation of the end of a head'],
    emit({ input, output, headDim, rope, from = 0 }, builder) {
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
          from,
          half: rope.pairing === 'half',
          table: at.rope(rope),
          positions: at.step.positions,
        }),
      });
    },
  }),
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
    readonly scale?: number;
    readonly output: Place;
    readonly tokens: number;
  };
  const { columns, scale } = task;
  const arena = worker.arenas[task.arena] as Arena;
  const format = cpuFormat(task.format) as CpuFormat;
  const bytes = groupBytes(task.format, columns);
  const decode = (format.kind === 'block' ? arena.kernels.decodeRow : arena.kernels.decodeRowFloat) as KernelCall;
  const { home } = worker;
  return perRow((row) => {
    const token = home.i32[task.tokens / 4 + row] as number;
    const to = task.output.offset + row * task.output.stride;
    const inside = arena === home ? to : arena.scratch + 8 * 192;
    decode(format.number, task.weight + (token >> 2) * bytes, columns, token & 3, inside, arena.scratch);
    if (arena !== home) home.bytes.set(arena.bytes.subarray(inside, inside + columns * 4), to);
    if (scale !== undefined) (home.kernels.scale as KernelCall)(to, to, scale, columns);
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
    /** Elements behind the groups. */
    readonly rest: number;
    readonly blame: number;
  };
  const { bytes, kernels } = worker.home;
  const rmsNorm = kernels.rmsNorm as KernelCall;
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
    if (task.rest > 0) bytes.copyWithin(to, from, from + task.rest * 4);
  });
}

export function makeRope(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly input: Place;
    readonly output: Place;
    readonly heads: number;
    readonly headDim: number;
    readonly from: number;
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
      task.from,
      pairs,
      task.half ? 1 : 0,
    );
  });
}

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
