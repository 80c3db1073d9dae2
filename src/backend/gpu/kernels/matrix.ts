/** Rows of the table for prompt products on subgroup matrices: projections, alone and fused. The MoE layer has its own. */

import type { GatedOperation, LinearOperation, ProjectOperation } from '../../../model/graph.ts';
import type { FormatId } from '../../../quant/index.ts';
import type { KernelRequest, Tolerance, WeightShape } from '../../kernel.ts';
import type { Builder } from '../builder.ts';
import { acceptsWeight } from '../formats/index.ts';
import type { GpuRow } from '../row.ts';
import { servedActivations } from './activation.ts';
import { emitMatrix, emitMatrixGated, halvesOf } from './matrix-product.ts';

/** What a device must offer (`device.ts` says what the name stands for). */
export const MATRIX_FEATURE = 'subgroup-matrix-f16';

export const matrixTolerance: Tolerance = {
  relativeRms: 2e-3,
  reason: 'weights and scaled activations are rounded to f16 and summed in f32',
};

/** Formats whose values f16 does not hold: more digits, or more range. */
const tooFine: readonly FormatId[] = ['F32', 'BF16', 'FP8_32', 'FP8_128'];

/** true, or why the request's device or one of the named weights does not allow products on subgroup matrices. */
export function acceptsMatrix({ features, weights }: KernelRequest, names: readonly string[]): true | string {
  for (const name of names) {
    const { format, shape } = weights[name] as WeightShape;
    if (tooFine.includes(format)) return `${name}: weights are rounded to f16, which is too coarse for ${format}`;
    const answer = acceptsWeight(name, format, shape.at(-1) as number);
    if (answer !== true) return answer;
  }
  return features.has(MATRIX_FEATURE) || `needs ${MATRIX_FEATURE}, which this device does not offer`;
}

type Product = LinearOperation | ProjectOperation | GatedOperation;

function matricesOf(operation: Product): readonly string[] {
  switch (operation.kind) {
    case 'linear':
      return [operation.weight];
    case 'project':
      return operation.parts.map(({ weight }) => weight);
    case 'gated':
      return [operation.gate, operation.up];
  }
}

function matrixRow(kind: Product['kind']): GpuRow {
  return {
    name: `${kind}-prompt-matrix`,
    device: 'gpu',
    operation: kind,
    modes: ['prompt'],
    tolerance: matrixTolerance,
    layout: 'planes',
    serves: kind === 'gated' ? servedActivations : [],
    accepts(request) {
      const operation = request.operation as Product;
      const names = matricesOf(operation);
      for (const name of names) {
        const { shape } = request.weights[name] as WeightShape;
        if (shape.length !== 2) return `${name}: needs a matrix, found [${shape.join(', ')}]`;
      }
      return acceptsMatrix(request, names);
    },
    emit: (operation, builder) => emitProduct(operation as Product, builder),
  };
}

export const matrixRows: readonly GpuRow[] = (['linear', 'project', 'gated'] as const).map(matrixRow);

function emitProduct(operation: Product, builder: Builder): void {
  const { kind, input, output } = operation;
  const outputWidth = builder.width(output);
  builder.declareValue(output, outputWidth);
  const common = {
    label: output,
    halves: halvesOf(builder, input, kind === 'linear' ? undefined : operation.norm),
    output: { kind: 'value', name: output, access: 'write' },
    outputWidth,
  } as const;
  if (kind === 'gated') {
    const [gate, up] = [builder.weight(operation.gate), builder.weight(operation.up)];
    emitMatrixGated(builder, { ...common, gate, up, activation: operation.activation });
    return;
  }
  const parts = kind === 'linear' ? [operation] : operation.parts;
  emitMatrix(builder, {
    ...common,
    weights: parts.map(({ weight, bias }) => ({ weight: builder.weight(weight), bias })),
    add: kind === 'linear' ? undefined : operation.add,
  });
}
