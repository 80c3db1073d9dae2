/** The reference's kernel table: one row an operation, both modes, every format that can be decoded. */

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

function row(operation: OperationKind, accepts: KernelRow['accepts'] = acceptsFormats): KernelRow {
  return {
    name: `reference-${operation}`,
    device: 'reference',
    operation,
    modes: ['prompt', 'step'],
    accepts,
    tolerance,
  };
}

export const referenceRows: readonly KernelRow[] = [
  row('embed'),
  row('incoming'),
  row('norm'),
  row('linear'),
  row('rope'),
  row('attention', acceptsCache),
  row('glu'),
  row('moe'),
  row('experts'),
  row('add'),
  row('concat'),
  row('head'),
];
