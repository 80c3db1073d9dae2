/** What is done to each row by itself: embedding lookup, rows from outside, norms, rotation, quantisation. */

import type { EmbedOperation, IncomingOperation, NormOperation, RopeOperation } from '../../../model/graph.ts';
import type { FormatId } from '../../../quant/index.ts';
import { Fault } from '../control.ts';
import { acceptsWeight, type CpuFormat, cpuFormat, cpuFormats, type Encoding, groupBytes } from '../formats.ts';
import type { Place, RopePlace, Task } from '../program.ts';
import type { CpuRow } from '../row.ts';
import type { Arena, KernelCall, RunningTask, WorkerView } from '../task.ts';
import { perRow, rowOf, rowwise } from './row-task.ts';

/** Scratch for decoding a row: 8 tiles, and the row. */
const decodeScratch = (columns: number) => 8 * 192 + columns * 4;

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
];

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
