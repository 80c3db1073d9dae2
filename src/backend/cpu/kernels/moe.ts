/**
 * The MoE layer: router, choice, the rows of each expert, gate and up with their product, down, and the weighted sum in rank
 * order. The rows that chose an expert are multiplied together, so its weights are read once; the shared expert runs beside
 * the router and beside the others.
 */

import type { MoeOperation } from '../../../model/graph.ts';
import type { MoeSpec } from '../../../model/spec.ts';
import type { FormatId } from '../../../quant/index.ts';
import { type Addresses, type Builder, ROW_BLOCK, UNIT_GROUPS, unitGroupsOf } from '../builder.ts';
import { acceptsWeight, groupBytes, groupsOf } from '../formats.ts';
import type { Place } from '../program.ts';
import type { CpuRow } from '../row.ts';
import { productScratch } from './product.ts';
import { int8Tolerance } from './tolerances.ts';

/** Where the choice of a step's experts lies, in arena 0. Pairs are numbered row · used + rank. */
export interface RoutingPlaces {
  readonly ids: Place;
  readonly weights: Place;
  /** Pairs in order of their expert, and the row of each. */
  readonly order: Place;
  readonly orderRows: Place;
  /** How many experts have pairs, then (id, first, count) of each. */
  readonly active: Place;
}

/** A stack of matrices of one shape. */
export interface Stack {
  readonly arena: number;
  readonly offset: number;
  readonly format: FormatId;
  readonly columns: number;
  readonly groups: number;
  /** Bytes from one matrix to the next. */
  readonly bytes: number;
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
      for (const [name, { format, shape }] of Object.entries(request.weights)) {
        if (name === `${prefix}.selectionBias`) continue;
        if (shape.length < 2) return `${name}: needs a matrix, found [${shape.join(', ')}]`;
        const answer = acceptsWeight(name, format, shape.at(-1) as number);
        if (answer !== true) return answer;
      }
      return true;
    },
    emit: (operation, builder) => emitMoe(operation as MoeOperation, builder),
  },
];

function emitMoe(operation: MoeOperation, builder: Builder): void {
  const { moe, prefix, input, output } = operation;
  const { rows } = builder;
  const pairs = rows * moe.used;
  const names = {
    logits: `${prefix}.logits`,
    ids: `${prefix}.ids`,
    weights: `${prefix}.weights`,
    order: `${prefix}.order`,
    orderRows: `${prefix}.orderRows`,
    active: `${prefix}.active`,
    inner: `${prefix}.inner`,
    expertOut: `${prefix}.expertOut`,
  };
  builder.declareValue(names.logits, moe.experts);
  builder.declareValue(names.inner, moe.inner, pairs, moe.used);
  builder.declareValue(names.expertOut, builder.width(output), pairs, moe.used);
  for (const name of [names.ids, names.weights, names.order, names.orderRows])
    builder.declare(name, pairs * 4, moe.used * 4);
  const activeBytes = (1 + moe.experts * 3) * 4;
  builder.declare(names.active, activeBytes, activeBytes);
  const routing = (at: Addresses): RoutingPlaces => ({
    ids: at.buffer(names.ids),
    weights: at.buffer(names.weights),
    order: at.buffer(names.order),
    orderRows: at.buffer(names.orderRows),
    active: at.buffer(names.active),
  });
  const chosen = [names.order, names.orderRows, names.active];

  emitProduct(builder, { input, weight: `${prefix}.router`, output: names.logits });
  if (moe.shared !== undefined) emitSharedIn(operation, builder);
  emitRoute(operation, builder, names, routing);
  builder.emit({
    space: 'units',
    reads: [names.ids],
    writes: chosen,
    scratch: moe.experts * 4,
    optional: true,
    make: (at) => ({ kind: 'sortPairs', routing: routing(at), experts: moe.experts, used: moe.used }),
  });
  const [gate, up, down] = [`${prefix}.gate`, `${prefix}.up`, `${prefix}.down`] as const;
  builder.emit({
    space: 'units',
    reads: [builder.operand(input, gate), builder.operand(input, up), ...chosen],
    writes: [names.inner],
    weights: [gate, up],
    scratch: gatedScratch(builder, gate, Math.max(rows, ROW_BLOCK)),
    make: (at) => ({
      kind: 'expertsIn',
      routing: routing(at),
      gate: stackOf(builder, at, gate),
      up: stackOf(builder, at, up),
      gateInput: at.value(builder.operand(input, gate)),
      upInput: at.value(builder.operand(input, up)),
      output: at.value(names.inner),
    }),
  });
  if (moe.shared !== undefined) {
    emitProduct(builder, {
      input: `${prefix}.sharedInner`,
      weight: `${prefix}.shared.down`,
      output: `${prefix}.sharedOut`,
    });
  }
  builder.encode(names.inner, moe.inner, { space: 'pairs', used: moe.used, rows: pairs });
  const innerOperand = builder.operand(names.inner, down);
  builder.emit({
    space: 'units',
    reads: [innerOperand, ...chosen],
    writes: [names.expertOut],
    weights: [down],
    scratch: productScratch(builder.operandStride(down)),
    make: (at) => ({
      kind: 'expertsOut',
      routing: routing(at),
      down: stackOf(builder, at, down),
      input: at.value(innerOperand),
      output: at.value(names.expertOut),
    }),
  });
  emitCombine(operation, builder, names, routing);
}

type Names = Readonly<Record<'logits' | 'ids' | 'weights' | 'order' | 'orderRows' | 'active' | 'expertOut', string>>;

function emitRoute(
  operation: MoeOperation,
  builder: Builder,
  names: Names,
  routing: (at: Addresses) => RoutingPlaces,
): void {
  const { moe, prefix, layer } = operation;
  builder.emit({
    space: 'rows',
    reads: [names.logits],
    writes: [names.ids, names.weights, names.order, names.orderRows, names.active],
    scratch: (2 * moe.experts + (moe.router.groups?.count ?? 0)) * 4,
    make: (at) => ({
      kind: 'route',
      logits: at.value(names.logits),
      routing: routing(at),
      experts: moe.experts,
      used: moe.used,
      router: moe.router,
      bias: moe.router.selectionBias ? at.weight(`${prefix}.selectionBias`).offset : 0,
      layer,
    }),
  });
}

/** The shared expert's gate and up, and its own gate's logit; independent of the router, so in its stage. */
function emitSharedIn(operation: MoeOperation, builder: Builder): void {
  const { moe, prefix, input, output } = operation;
  const shared = moe.shared as NonNullable<MoeSpec['shared']>;
  const inner = `${prefix}.sharedInner`;
  const [gate, up] = [`${prefix}.shared.gate`, `${prefix}.shared.up`] as const;
  builder.declareValue(inner, shared.inner);
  builder.declareValue(`${prefix}.sharedOut`, builder.width(output));
  builder.emit({
    space: 'units',
    reads: [builder.operand(input, gate), builder.operand(input, up)],
    writes: [inner],
    weights: [gate, up],
    scratch: gatedScratch(builder, gate, builder.rows),
    make: (at) => ({
      kind: 'gatedIn',
      gate: stackOf(builder, at, gate),
      up: stackOf(builder, at, up),
      gateInput: at.value(builder.operand(input, gate)),
      upInput: at.value(builder.operand(input, up)),
      output: at.value(inner),
    }),
  });
  if (shared.gated) {
    builder.declareValue(`${prefix}.sharedGate`, 1);
    emitProduct(builder, { input, weight: `${prefix}.shared.router`, output: `${prefix}.sharedGate` });
  }
  builder.encode(inner, shared.inner, { space: 'rows' });
}

function emitCombine(
  operation: MoeOperation,
  builder: Builder,
  names: Names,
  routing: (at: Addresses) => RoutingPlaces,
): void {
  const { moe, prefix, output } = operation;
  const width = builder.width(output);
  builder.declareValue(output, width);
  const shared = moe.shared === undefined ? [] : [`${prefix}.sharedOut`];
  const gate = moe.shared?.gated === true ? [`${prefix}.sharedGate`] : [];
  builder.emit({
    space: 'rows',
    reads: [names.expertOut, names.weights, ...shared, ...gate],
    writes: [output],
    make: (at) => ({
      kind: 'combine',
      experts: at.value(names.expertOut),
      weights: routing(at).weights,
      used: moe.used,
      width,
      shared: shared[0] === undefined ? undefined : at.value(shared[0]),
      gate: gate[0] === undefined ? undefined : at.value(gate[0]),
      output: at.value(output),
    }),
  });
  builder.encode(output, width, { space: 'rows' });
}

/** A plain product inside the layer, served by the task of linear operations. */
function emitProduct(
  builder: Builder,
  names: { readonly input: string; readonly weight: string; readonly output: string },
): void {
  const { input, weight, output } = names;
  const { format, shape } = builder.weight(weight);
  const columns = shape.at(-1) as number;
  const rows = shape.length < 2 ? 1 : (shape.at(-2) as number);
  const operand = builder.operand(input, weight);
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

function stackOf(builder: Builder, at: Addresses, name: string): Stack {
  const { format, shape } = builder.weight(name);
  const columns = shape.at(-1) as number;
  const groups = groupsOf(shape.at(-2) as number);
  const { arena, offset } = at.weight(name);
  return { arena, offset, format, columns, groups, bytes: groups * groupBytes(format, columns) };
}

/** A product's scratch, and the up half of a unit's results behind it. */
export function gatedScratch(builder: Builder, weight: string, rows: number): number {
  const columns = builder.weight(weight).shape.at(-1) as number;
  return productScratch(columns * 4) + rows * UNIT_GROUPS * 16;
}
