/** Fused products: projections side by side, and the gated half of a dense layer, each with its norm and its sum. */

import type { GatedOperation, ProjectOperation } from '../../../model/graph.ts';
import type { Mode, WeightShape } from '../../kernel.ts';
import type { Builder } from '../builder.ts';
import { acceptsWeight } from '../formats/index.ts';
import type { GpuRow } from '../row.ts';
import { servedActivations } from './activation.ts';
import { emitGated } from './gated.ts';
import { rowsOf } from './kernel-text.ts';
import { acceptsEncoding, type Encoding, f32Encoding, int8Encoding } from './lane-product.ts';
import { emitTiled } from './linear.ts';
import { emitMatVec } from './matvec.ts';
import { emitRowNorm } from './rowwise.ts';
import { emitTiledGated } from './tiled-gated.ts';

type Fused = ProjectOperation | GatedOperation;

function matricesOf(operation: Fused): readonly string[] {
  return operation.kind === 'project' ? operation.parts.map(({ weight }) => weight) : [operation.gate, operation.up];
}

function fusedRow(kind: Fused['kind'], mode: Mode, encoding: Encoding): GpuRow {
  return {
    name: `${kind}-${mode}${encoding.id === 'f32' ? '' : `-${encoding.id}`}`,
    device: 'gpu',
    operation: kind,
    modes: [mode],
    tolerance: encoding.tolerance,
    layout: 'planes',
    serves: kind === 'gated' ? servedActivations : [],
    accepts(request) {
      const operation = request.operation as Fused;
      const matrices = matricesOf(operation).map((name) => [name, request.weights[name] as WeightShape] as const);
      for (const [name, { format, shape }] of matrices) {
        if (shape.length !== 2) return `${name}: needs a matrix, found [${shape.join(', ')}]`;
        const answer = acceptsWeight(name, format, shape[1] as number);
        if (answer !== true) return answer;
      }
      return acceptsEncoding(encoding, request.features, matrices);
    },
    emit(made, builder) {
      const operation = made as Fused;
      if (operation.kind === 'project') {
        if (mode === 'step') emitProjectStep(operation, builder, encoding);
        else emitProjectPrompt(operation, builder);
      } else if (mode === 'step') emitGatedStep(operation, builder, encoding);
      else emitGatedPrompt(operation, builder);
    },
  };
}

export const projectRows: readonly GpuRow[] = (['project', 'gated'] as const).flatMap((kind) => [
  fusedRow(kind, 'step', int8Encoding),
  fusedRow(kind, 'step', f32Encoding),
  fusedRow(kind, 'prompt', f32Encoding),
]);

function partsOf({ parts }: ProjectOperation, builder: Builder) {
  return parts.map(({ weight, bias }) => ({ weight: builder.weight(weight), bias }));
}

function emitProjectStep(operation: ProjectOperation, builder: Builder, encoding: Encoding): void {
  const { input, norm, add, output } = operation;
  const outputWidth = builder.width(output);
  builder.declareValue(output, outputWidth);
  emitMatVec(builder, 'step', {
    label: output,
    encoding,
    input,
    norm,
    output: { kind: 'value', name: output, access: 'write' },
    outputWidth,
    weights: partsOf(operation, builder),
    add,
    wanted: false,
  });
}

function emitProjectPrompt(operation: ProjectOperation, builder: Builder): void {
  const { add, output } = operation;
  const outputWidth = builder.width(output);
  builder.declareValue(output, outputWidth);
  const input = emitRowNorm(builder, 'prompt', operation);
  let outputOffset = 0;
  for (const { weight, bias } of partsOf(operation, builder)) {
    emitTiled(builder, {
      label: weight.name,
      input: { kind: 'value', name: input, access: 'read' },
      output: { kind: 'value', name: output, access: 'write' },
      outputWidth,
      outputOffset,
      weight,
      bias,
      add,
    });
    outputOffset += rowsOf(weight);
  }
}

function emitGatedStep(operation: GatedOperation, builder: Builder, encoding: Encoding): void {
  const { input, norm, output } = operation;
  const outputWidth = builder.width(output);
  builder.declareValue(output, outputWidth);
  emitGated(builder, {
    label: output,
    encoding,
    input,
    norm,
    activation: operation.activation,
    output: { kind: 'value', name: output, access: 'write' },
    outputWidth,
    always: {
      gate: builder.weight(operation.gate),
      up: builder.weight(operation.up),
      wide: outputWidth,
      offset: 0,
    },
  });
}

function emitGatedPrompt(operation: GatedOperation, builder: Builder): void {
  const { output } = operation;
  const outputWidth = builder.width(output);
  builder.declareValue(output, outputWidth);
  emitTiledGated(builder, {
    label: output,
    input: emitRowNorm(builder, 'prompt', operation),
    gate: builder.weight(operation.gate),
    up: builder.weight(operation.up),
    activation: operation.activation,
    output: { kind: 'value', name: output, access: 'write' },
    outputWidth,
    outputOffset: 0,
    wide: outputWidth,
  });
}
