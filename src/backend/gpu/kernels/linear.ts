/** Matrix products: rows for each weight format, for projections and for the head. */

import type { HeadOperation, LinearOperation } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Mode, Tolerance } from '../../kernel.ts';
import type { Binding, Builder } from '../builder.ts';
import { acceptsWeight, gpuFormats } from '../formats/index.ts';
import type { GpuRow } from '../row.ts';
import { columnsOf, KernelText, rowReader, rowsOf } from './kernel-text.ts';
import { emitMatVec } from './matvec.ts';
import { TILE_ROWS, tileKernel } from './tiles.ts';

export const f32Tolerance: Tolerance = {
  relativeRms: 1e-6,
  reason: 'f32 sums in several lanes where the reference has f64 sums',
};

type Product = 'linear' | 'head';

function productRow(id: string, operation: Product, modes: readonly Mode[], kind: string): GpuRow {
  return {
    name: `${operation}-${kind}${id.toLowerCase()}`,
    device: 'gpu',
    operation,
    modes,
    tolerance: f32Tolerance,
    layout: 'planes',
    accepts(request) {
      const { weight } = request.operation as LinearOperation | HeadOperation;
      const { format, shape } = request.weights[weight] as { format: string; shape: readonly number[] };
      if (format !== id) return `takes ${id}, found ${format}`;
      if (shape.length !== 2) return `needs a matrix, found [${shape.join(', ')}]`;
      return acceptsWeight(weight, format, shape[1] as number);
    },
    emit: (made, builder, mode) => emitProduct(made as LinearOperation | HeadOperation, builder, mode),
  };
}

/** Few logits are wanted even of a long prompt, so the head has one kind of kernel. */
export const linearRows: readonly GpuRow[] = gpuFormats.flatMap(({ id }) => [
  productRow(id, 'linear', ['step'], 'step-'),
  productRow(id, 'linear', ['prompt'], 'prompt-'),
  productRow(id, 'head', ['prompt', 'step'], ''),
]);

function emitProduct(operation: LinearOperation | HeadOperation, builder: Builder, mode: Mode): void {
  const { input, output } = operation;
  const head = operation.kind === 'head';
  const weight = builder.weight(operation.weight);
  const width = builder.width(output);
  builder.declareValue(output, width, head ? builder.wanted : builder.rows);
  const product = {
    label: operation.weight,
    input,
    output: { kind: 'value', name: output, access: 'write' },
    outputWidth: width,
    weight,
    bias: operation.kind === 'linear' ? operation.bias : undefined,
  } as const;
  if (head || mode === 'step') {
    emitMatVec(builder, mode, { ...product, weights: [{ weight, bias: product.bias }], wanted: head });
  } else {
    emitTiled(builder, { ...product, input: { kind: 'value', name: input, access: 'read' } });
  }
}

export interface TiledProduct {
  readonly label: string;
  readonly input: Exclude<Binding, { kind: 'weight' }>;
  /** How rows are read, where they do not follow each other without gaps. */
  readonly reader?: { readonly type: string; readonly code: string };
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row, of which the weight's rows are the first. */
  readonly outputWidth: number;
  readonly weight: Weight;
  readonly bias?: string;
}

/** The product of every row of a prompt run. */
export function emitTiled(builder: Builder, product: TiledProduct): void {
  const { label, input, output, outputWidth, weight, bias } = product;
  const rows = rowsOf(weight);
  const reader = product.reader ?? rowReader(columnsOf(weight));
  const text = new KernelText()
    .bind(input, 'x', reader.type)
    .bind(output, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const matrix = text.matrix(weight);
  if (bias !== undefined) text.vector(bias, 'bias');
  const height = 64;
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${rows}u) { y[(top + t) * ${outputWidth}u + row] = s${j}${bias === undefined ? '' : ' + bias[row]'}; }
      }`;
  const code = tileKernel({
    text,
    height,
    blocks: matrix.blocks,
    functions: reader.code,
    start: `
  let first = wg.x * ${TILE_ROWS}u;
  let top = wg.y * ${height}u;
  if (top >= step[${builder.step.rows}u]) { return; }
  let count = min(step[${builder.step.rows}u] - top, ${height}u);`,
    inputRow: 'top + t',
    decode: (store) => store(matrix, `min(first + tid, ${rows - 1}u)`),
    write: [0, 1, 2, 3].map(put).join('\n'),
  });
  const across = Math.ceil(rows / TILE_ROWS);
  builder.dispatch('prompt', {
    label,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, Math.ceil(run.rows / height), 1],
  });
}
