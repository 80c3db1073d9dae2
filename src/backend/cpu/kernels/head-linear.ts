/** A product for each head of a value: one row a weight format. A unit is some rows of one head’s matrix, for all rows of the run. */

import type { HeadLinearOperation } from '../../../model/graph.ts';
import type { FormatId } from '../../../quant/index.ts';
import { type Builder, unitGroupsOf } from '../builder.ts';
import { acceptsWeight, cpuFormats, type Encoding, encodedBlockBytes, groupsOf } from '../formats.ts';
import type { Place, Task } from '../program.ts';
import type { CpuRow } from '../row.ts';
import type { RunningTask, WorkerView } from '../task.ts';
import { Product, productScratch } from './product.ts';
import { rowOf } from './row-task.ts';
import { encoder } from './rowwise.ts';
import { encodingTolerances } from './tolerances.ts';

interface HeadLinearTask extends Task {
  readonly arena: number;
  readonly weight: number;
  readonly format: FormatId;
  readonly heads: number;
  /** Of one head's matrix. */
  readonly columns: number;
  readonly groups: number;
  /** What is multiplied: bytes from head to head and of a head. Rows are `stride` bytes apart. */
  readonly operand: Place;
  readonly operandHead: number;
  readonly operandBytes: number;
  readonly input: Place;
  readonly output: Place;
  readonly rest: number;
}

export const headLinearRows: readonly CpuRow[] = cpuFormats.map(
  ({ id, activations }): CpuRow => ({
    name: `headLinear-${id.toLowerCase()}`,
    device: 'cpu',
    operation: 'headLinear',
    modes: ['prompt', 'step'],
    tolerance: encodingTolerances[activations],
    layout: 'interleave4',
    accepts(request) {
      const { weight } = request.operation as HeadLinearOperation;
      const { format, shape } = request.weights[weight] as { format: string; shape: readonly number[] };
      if (format !== id) return `takes ${id}, found ${format}`;
      if (shape.length !== 3) return `needs a matrix a head, found [${shape.join(', ')}]`;
      const [, rows, columns] = shape as readonly [number, number, number];
      // A product writes whole groups, and the next head's begin behind it.
      if (rows % 4 !== 0) return `needs heads whose products are multiples of 4 wide, found ${rows}`;
      return acceptsWeight(weight, format, columns);
    },
    emit: (made, builder) => emitHeadLinear(made as HeadLinearOperation, builder),
  }),
);

function emitHeadLinear({ input, weight, output, heads, rest = 0 }: HeadLinearOperation, builder: Builder): void {
  const width = builder.width(output);
  builder.declareValue(output, width);
  const { format, shape } = builder.weight(weight);
  const columns = shape[2] as number;
  const groups = groupsOf(shape[1] as number);
  const encoding = builder.encoding(weight);
  const operand = encoding === 'f32' ? input : emitEncoded(builder, { input, weight, output, heads, encoding });
  const operandBytes = builder.operandStride(weight);
  builder.emit({
    space: 'units',
    reads: [input, operand],
    writes: [output],
    weights: [weight],
    // One worker alone has the longest units.
    scratch: productScratch(operandBytes, Math.min(groups, unitGroupsOf(heads * groups, 1))),
    make: (at): HeadLinearTask => ({
      kind: 'headLinear',
      arena: at.weight(weight).arena,
      weight: at.weight(weight).offset,
      format,
      heads,
      columns,
      groups,
      operand: at.value(operand),
      operandHead: encoding === 'f32' ? (columns + rest) * 4 : operandBytes,
      operandBytes,
      input: at.value(input),
      output: at.value(output),
      rest,
    }),
  });
  builder.encode(output, width);
}

/** What is multiplied of each head, encoded as the weight's kernel takes it, heads side by side; returns its name. */
function emitEncoded(
  builder: Builder,
  given: Pick<HeadLinearOperation, 'input' | 'weight' | 'output' | 'heads'> & {
    readonly encoding: Exclude<Encoding, 'f32'>;
  },
): string {
  const { input, weight, output, heads, encoding } = given;
  const name = `${output}.operand`;
  const blocks = (builder.weight(weight).shape[2] as number) / 32;
  builder.declareHeads(name, weight, heads);
  builder.emit({
    space: 'rows',
    reads: [input],
    writes: [name],
    make: (at) => ({
      kind: 'encodeHeads',
      input: at.value(input),
      output: at.value(name),
      heads,
      head: (builder.width(input) / heads) * 4,
      blocks,
      encoding,
    }),
  });
  return name;
}

export function makeEncodeHeads(data: Task, worker: WorkerView): RunningTask {
  const { input, output, heads, head, blocks, encoding } = data as Task & {
    readonly input: Place;
    readonly output: Place;
    readonly heads: number;
    /** Bytes from head to head of the input. */
    readonly head: number;
    readonly blocks: number;
    readonly encoding: Exclude<Encoding, 'f32'>;
  };
  const encode = encoder(worker, encoding);
  const bytes = blocks * encodedBlockBytes[encoding];
  return {
    units: () => 0,
    run(row) {
      for (let h = 0; h < heads; h++) encode(rowOf(input, row) + h * head, rowOf(output, row) + h * bytes, blocks);
    },
  };
}

/** A unit is some groups of one head's matrix, for all rows; the first of a head also brings what is not multiplied. */
export function makeHeadLinear(data: Task, worker: WorkerView): RunningTask {
  const task = data as HeadLinearTask;
  const { heads, columns, groups, operand, operandHead, operandBytes, input, output, rest } = task;
  const { bytes } = worker.home;
  const product = new Product(worker, { ...task, xStride: operand.stride, xBytes: operandBytes });
  const unitGroups = Math.min(groups, unitGroupsOf(heads * groups, worker.control.threads));
  const each = Math.ceil(groups / unitGroups);
  const outputHead = groups * 16 + rest * 4;
  const inputHead = (columns + rest) * 4;
  return {
    units: () => heads * each,
    run(unit) {
      const head = Math.floor(unit / each);
      const first = (unit % each) * unitGroups;
      const to = output.offset + head * outputHead;
      product.multiply({
        weight: task.weight + (head * groups + first) * product.groupBytes,
        groups: Math.min(unitGroups, groups - first),
        x: operand.offset + head * operandHead,
        xIndex: 0,
        count: worker.step.rows,
        out: to + first * 16,
        outStride: output.stride,
        outIndex: 0,
        key: 0,
      });
      if (first > 0 || rest === 0) return;
      for (let row = 0; row < worker.step.rows; row++) {
        const from = rowOf(input, row) + head * inputHead + columns * 4;
        bytes.copyWithin(to + row * output.stride + groups * 16, from, from + rest * 4);
      }
    },
  };
}
