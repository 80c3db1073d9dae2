/**
 * Single experts for another device. The caller writes the rows and puts the pairs in order; then come the norm and the
 * encoding of the rows, gate and up with their product, and down: of one row that are two barriers.
 */

import type { ExpertsOperation } from '../../../model/graph.ts';
import { type Builder, normedName } from '../builder.ts';
import type { CpuRow } from '../row.ts';
import { servedActivations } from './activation.ts';
import {
  acceptsMatrix,
  declareExperts,
  type ExpertNames,
  emitExpertsIn,
  emitExpertsOut,
  placesOfPairs,
} from './expert-products.ts';
import { int8Tolerance } from './tolerances.ts';

export const singleExpertRows: readonly CpuRow[] = [
  {
    name: 'experts',
    device: 'cpu',
    operation: 'experts',
    modes: ['prompt', 'step'],
    tolerance: { relativeRms: int8Tolerance.relativeRms, reason: `${int8Tolerance.reason}, twice over` },
    layout: 'interleave4',
    serves: [...servedActivations, 'biases of experts', 'scales of matrices of experts'],
    accepts(request) {
      const { prefix } = request.operation as ExpertsOperation;
      for (const name of ['gate', 'up', 'down'].map((part) => `${prefix}.${part}`)) {
        const weight = request.weights[name];
        if (weight === undefined) return `needs ${name}, which is not there`;
        const answer = acceptsMatrix(name, weight);
        if (answer !== true) return answer;
      }
      return true;
    },
    emit: (operation, builder) => emitExperts(operation as ExpertsOperation, builder),
  },
];

function emitExperts(operation: ExpertsOperation, builder: Builder): void {
  const { layer, prefix, input, norm, moe, output } = operation;
  const width = builder.width(output);
  const own = (part: string) => `${output}.${part}`;
  const ids = own('ids');
  const names: ExpertNames = {
    prefix,
    scaled: moe.scaled,
    input: normedName(operation),
    inner: own('inner'),
    activation: moe.activation,
    biases: moe.biases,
    output,
    pairs: { order: own('order'), orderRows: own('orderRows'), active: own('active') },
  };
  const pairs = builder.expertPairs;
  builder.declareValue(input, width);
  builder.declare(ids, pairs * 4, moe.used * 4);
  declareExperts(builder, names, { pairs, used: moe.used, experts: moe.experts, width });
  builder.enter({
    layer,
    given: [input, ids, ...Object.values(names.pairs)],
    // What putting pairs in order counts in.
    scratch: moe.experts * 4,
    make: (at) => ({
      input: at.value(input),
      ids: at.buffer(ids),
      pairs: placesOfPairs(at, names.pairs),
      output: at.value(output),
    }),
  });
  if (norm !== undefined) {
    builder.declareValue(names.input, width);
    builder.emit({
      space: 'rows',
      reads: [input],
      writes: [names.input],
      make: (at) => ({
        kind: 'norm',
        input: at.value(input),
        output: at.value(names.input),
        weight: at.weight(norm.weight).offset,
        epsilon: norm.epsilon,
        group: width,
        groups: 1,
        rest: 0,
        blame: layer,
      }),
    });
  }
  builder.encode(names.input, width);
  emitExpertsIn(builder, names);
  emitExpertsOut(builder, names, layer);
}
