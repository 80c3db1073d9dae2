/** The reference's kernel table: one row an operation, both modes, every format that can be decoded. */

import type { Demand } from '../../model/demands.ts';
import type { OperationKind } from '../../model/graph.ts';
import { formats } from '../../quant/index.ts';
import type { KernelRequest, KernelRow, Tolerance } from '../kernel.ts';

const tolerance: Tolerance = {
  relativeRms: 1e-6,
  reason: 'values are f32 and sums f64, so only the roundings of inputs and outputs are left',
};

const known = new Set(formats.map((format) => format.id));

function acceptsFormats(request: KernelRequest): true | string {
  for (const [name, { format }] of Object.entries(request.weights)) {
    if (!known.has(format)) return `cannot decode ${name}: needs one of ${[...known].join(', ')}, found ${format}`;
  }
  return true;
}

function acceptsCache(request: KernelRequest): true | string {
  return request.cache === 'f32' ? true : `keeps its cache in f32, found ${request.cache}`;
}

function row(
  operation: OperationKind,
  serves: readonly Demand[] = [],
  accepts: KernelRow['accepts'] = acceptsFormats,
): KernelRow {
  return {
    name: `reference-${operation}`,
    device: 'reference',
    operation,
    modes: ['prompt', 'step'],
    serves,
    accepts,
    tolerance,
  };
}

const activations: readonly Demand[] = ['GELU', 'clamped SwiGLU'];

export const referenceRows: readonly KernelRow[] = [
  row('embed', ['a scale on embeddings']),
  row('incoming'),
  row('norm', ['norms without weights', 'a norm of part of a row']),
  row('linear'),
  row('headLinear'),
  row('rope', ['a rotation of the end of a head']),
  row(
    'attention',
    [
      'a window of attention',
      'chunks of attention',
      'attention sinks',
      'attention temperature',
      'values that are the beginnings of their keys',
    ],
    acceptsCache,
  ),
  row('glu', activations),
  row('gate'),
  row('scale', ['a scale on part of a row']),
  row('moe', [
    ...activations,
    'biases of experts',
    "a router's bias",
    "a router's own input",
    'scales of experts',
    'weights on the inputs of experts',
    'experts that give a row as it is',
    'scales of matrices of experts',
  ]),
  row('experts', [...activations, 'biases of experts', 'scales of matrices of experts']),
  row('add'),
  row('concat'),
  row('head', ['a soft cap on logits']),
];
