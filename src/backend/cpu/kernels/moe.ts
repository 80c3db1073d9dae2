/**
 * The MoE layer: router, choice, the rows of each expert, gate and up with their product, down, and the weighted sum in rank
 * order. The rows that chose an expert are multiplied together, so its weights are read once; the shared expert runs beside
 * the router and beside the others.
 */

import type { MoeOperation } from '../../../model/graph.ts';
import type { MoeSpec } from '../../../model/spec.ts';
import { type Addresses, type Builder, unitGroupsOf } from '../builder.ts';
import { groupsOf } from '../formats.ts';
import type { PairPlaces, Place } from '../program.ts';
import type { CpuRow } from '../row.ts';
import {
  acceptsMatrix,
  declareExperts,
  type ExpertNames,
  emitExpertsIn,
  emitExpertsOut,
  emitGated,
  placesOfPairs,
} from './expert-products.ts';
import { productScratch } from './product.ts';
import { int8Tolerance } from './tolerances.ts';

/** Where the choice of a step's experts lies, in arena 0. Pairs are numbered row · used + rank. */
export interface RoutingPlaces extends PairPlaces {
  readonly ids: Place;
  readonly weights: Place;
}

export const moeRows: readonly CpuRow[] = [
  {
    name: 'moe',
    device: 'cpu',
    operation: 'moe',
    modes: ['prompt', 'step'],
    tolerance: { relativeRms: int8Tolerance.relativeRms, reason: `${int8Tolerance.reason}, twice over` },
    layout: 'interleave4',
    accepts(request) {
      const { moe, prefix } = request.operation as MoeOperation;
      if (moe.activation !== 'silu') return `gates with silu, found ${moe.activation}`;
      for (const [name, weight] of Object.entries(request.weights)) {
        if (vectors.some((vector) => name === `${prefix}.${vector}`)) continue;
        const answer = acceptsMatrix(name, weight);
        if (answer !== true) return answer;
      }
      return true;
    },
    emit: (operation, builder) => emitMoe(operation as MoeOperation, builder),
  },
];

/** Weights of a layer that are no matrices. */
const vectors = ['selectionBias', 'gateScale', 'outputScale'];

interface Names extends ExpertNames {
  readonly logits: string;
  readonly ids: string;
  readonly weights: string;
}

function emitMoe(operation: MoeOperation, builder: Builder): void {
  const { moe, prefix, input, output } = operation;
  const pairs = builder.rows * moe.used;
  const names: Names = {
    prefix,
    scaled: moe.scaled,
    input,
    logits: `${prefix}.logits`,
    ids: `${prefix}.ids`,
    weights: `${prefix}.weights`,
    inner: `${prefix}.inner`,
    output: `${prefix}.expertOut`,
    pairs: { order: `${prefix}.order`, orderRows: `${prefix}.orderRows`, active: `${prefix}.active` },
  };
  builder.declareValue(names.logits, moe.experts);
  for (const name of [names.ids, names.weights]) builder.declare(name, pairs * 4, moe.used * 4);
  declareExperts(builder, names, { pairs, used: moe.used, experts: moe.experts, width: builder.width(output) });

  emitProduct(builder, { input, weight: `${prefix}.router`, output: names.logits });
  if (moe.shared !== undefined) emitSharedIn(operation, builder);
  emitRoute(operation, builder, names);
  builder.emit({
    space: 'units',
    reads: [names.ids],
    writes: Object.values(names.pairs),
    scratch: moe.experts * 4,
    optional: true,
    make: (at) => ({ kind: 'sortPairs', routing: routingOf(at, names), experts: moe.experts, used: moe.used }),
  });
  emitExpertsIn(builder, names);
  if (moe.shared !== undefined) {
    const down = `${prefix}.shared.down`;
    emitProduct(builder, { operand: `${prefix}.sharedInner`, weight: down, output: `${prefix}.sharedOut` });
  }
  emitExpertsOut(builder, names);
  emitCombine(operation, builder, names);
}

function routingOf(at: Addresses, names: Names): RoutingPlaces {
  return { ids: at.buffer(names.ids), weights: at.buffer(names.weights), ...placesOfPairs(at, names.pairs) };
}

function emitRoute(operation: MoeOperation, builder: Builder, names: Names): void {
  const { moe, prefix, layer } = operation;
  builder.emit({
    space: 'rows',
    reads: [names.logits],
    writes: [names.ids, names.weights, ...Object.values(names.pairs)],
    scratch: (2 * moe.experts + (moe.router.groups?.count ?? 0)) * 4,
    make: (at) => ({
      kind: 'route',
      logits: at.value(names.logits),
      routing: routingOf(at, names),
      experts: moe.experts,
      used: moe.used,
      router: moe.router,
      bias: moe.router.selectionBias ? at.weight(`${prefix}.selectionBias`).offset : 0,
      outputScale: moe.scaled === true ? at.weight(`${prefix}.outputScale`).offset : 0,
      layer,
    }),
  });
}

/** The shared expert's gate and up, and its own gate's logit; independent of the router, so in its stage. */
function emitSharedIn({ moe, prefix, input, output }: MoeOperation, builder: Builder): void {
  const shared = moe.shared as NonNullable<MoeSpec['shared']>;
  const names = { prefix: `${prefix}.shared`, input, inner: `${prefix}.sharedInner` };
  builder.declareOperand(names.inner, `${prefix}.shared.down`);
  builder.declareValue(`${prefix}.sharedOut`, builder.width(output));
  emitGated(builder, names);
  if (shared.gated) {
    builder.declareValue(`${prefix}.sharedGate`, 1);
    emitProduct(builder, { input, weight: `${prefix}.shared.router`, output: `${prefix}.sharedGate` });
  }
}

function emitCombine(operation: MoeOperation, builder: Builder, names: Names): void {
  const { moe, prefix, output } = operation;
  const width = builder.width(output);
  builder.declareValue(output, width);
  const shared = moe.shared === undefined ? [] : [`${prefix}.sharedOut`];
  const gate = moe.shared?.gated === true ? [`${prefix}.sharedGate`] : [];
  builder.emit({
    space: 'rows',
    reads: [names.output, names.weights, ...shared, ...gate],
    writes: [output],
    make: (at) => ({
      kind: 'combine',
      experts: at.value(names.output),
      weights: at.buffer(names.weights),
      used: moe.used,
      width,
      shared: shared[0] === undefined ? undefined : at.value(shared[0]),
      gate: gate[0] === undefined ? undefined : at.value(gate[0]),
      output: at.value(output),
    }),
  });
  builder.encode(output, width);
}

/** A plain product inside the layer, served by the task of linear operations. */
function emitProduct(
  builder: Builder,
  names: ({ readonly input: string } | { readonly operand: string }) & {
    readonly weight: string;
    readonly output: string;
  },
): void {
  const { weight, output } = names;
  const { format, shape } = builder.weight(weight);
  const columns = shape.at(-1) as number;
  const rows = shape.length < 2 ? 1 : (shape.at(-2) as number);
  const operand = 'operand' in names ? names.operand : builder.operand(names.input, weight);
  builder.emit({
    space: 'units',
    reads: [operand],
    writes: [output],
    weights: [weight],
    scratch: productScratch(builder.operandStride(weight), unitGroupsOf(groupsOf(rows), 1)),
    make: (at) => ({
      kind: 'linear',
      arena: at.weight(weight).arena,
      weight: at.weight(weight).offset,
      format,
      columns,
      groups: groupsOf(rows),
      input: at.value(operand),
      output: at.value(output),
      bias: 0,
      wanted: 0,
    }),
  });
}
