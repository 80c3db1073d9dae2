/** Matrix products: rows for each weight format, for projections and for the head. */

import type { HeadOperation, LinearOperation, ValueName } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Mode } from '../../kernel.ts';
import type { Binding, Builder } from '../builder.ts';
import { acceptsWeight, gpuFormats } from '../formats/index.ts';
import type { GpuRow } from '../row.ts';
import { columnsOf, KernelText, rowReader, rowsOf } from './kernel-text.ts';
import { acceptsEncoding, type Encoding, f32Encoding, int8Encoding } from './lane-product.ts';
import { emitMatVec } from './matvec.ts';
import { TILE_ROWS, tileKernel } from './tiles.ts';

function productRow(
  id: string,
  {
    name,
    operation,
    modes,
    encoding,
  }: {
    readonly name: string;
    readonly operation: 'linear' | 'head';
    readonly modes: readonly Mode[];
    /** Of step rows and of the head. */
    readonly encoding: Encoding;
  },
): GpuRow {
  return {
    name: `${name}-${id.toLowerCase()}`,
    device: 'gpu',
    operation,
    modes,
    tolerance: encoding.tolerance,
    layout: 'planes',
    serves: operation === 'head' ? ['a soft cap on logits'] : [],
    accepts(request) {
      const { weight } = request.operation as LinearOperation | HeadOperation;
      const { format, shape } = request.weights[weight] as { format: string; shape: readonly number[] };
      if (format !== id) return `takes ${id}, found ${format}`;
      if (shape.length !== 2) return `needs a matrix, found [${shape.join(', ')}]`;
      const answer = acceptsWeight(weight, format, shape[1] as number);
      return answer === true ? acceptsEncoding(encoding, request.features, [[weight, { format, shape }]]) : answer;
    },
    emit: (made, builder, mode) => emitProduct(made as LinearOperation | HeadOperation, { builder, mode, encoding }),
  };
}

/** Few logits are wanted even of a long prompt, so the head has one kind of kernel. */
function headAndStep(id: string, encoding: Encoding): GpuRow[] {
  const kind = encoding.id === 'f32' ? '' : `-${encoding.id}`;
  return [
    productRow(id, { name: `linear-step${kind}`, operation: 'linear', modes: ['step'], encoding }),
    productRow(id, { name: `head${kind}`, operation: 'head', modes: ['prompt', 'step'], encoding }),
  ];
}

export const linearRows: readonly GpuRow[] = gpuFormats.flatMap(({ id, activations }) => [
  ...(activations === 'int8' ? headAndStep(id, int8Encoding) : []),
  ...headAndStep(id, f32Encoding),
  productRow(id, { name: 'linear-prompt', operation: 'linear', modes: ['prompt'], encoding: f32Encoding }),
]);

function emitProduct(
  operation: LinearOperation | HeadOperation,
  { builder, mode, encoding }: { readonly builder: Builder; readonly mode: Mode; readonly encoding: Encoding },
): void {
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
    softcap: operation.kind === 'head' ? operation.softcap : undefined,
  } as const;
  if (head || mode === 'step') {
    emitMatVec(builder, mode, { ...product, encoding, weights: [{ weight, bias: product.bias }], wanted: head });
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
  /** f32 of an output row. */
  readonly outputWidth: number;
  /** Where in an output row they begin; 0 if it is not said. */
  readonly outputOffset?: number;
  readonly weight: Weight;
  readonly bias?: string;
  /** A value of the output's width that is added. */
  readonly add?: ValueName;
}

/** The product of every row of a prompt run. */
export function emitTiled(builder: Builder, product: TiledProduct): void {
  const { label, input, output, outputWidth, outputOffset = 0, weight, bias, add } = product;
  const rows = rowsOf(weight);
  const reader = product.reader ?? rowReader(columnsOf(weight));
  const text = new KernelText()
    .bind(input, 'x', reader.type)
    .bind(output, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const matrix = text.matrix(weight);
  if (bias !== undefined) text.vector(bias, 'bias');
  if (add !== undefined) text.bind({ kind: 'value', name: add, access: 'read' }, 'residual', 'f32');
  const height = 64;
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${rows}u) {
          let place = (top + t) * ${outputWidth}u + ${outputOffset}u + row;
          y[place] = s${j}${bias === undefined ? '' : ' + bias[row]'}${add === undefined ? '' : ' + residual[place]'};
        }
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
