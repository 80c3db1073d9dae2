/**
 * The MoE layer: router, choice, the rows of each expert, gate and up with their product, down, and the weighted sum in rank
 * order. The rows that chose an expert are multiplied together, so its weights are read once; the shared expert runs beside
 * the router and beside the others.
 */

import type { MoeOperation } from '../../../model/graph.ts';
import type { MoeSpec } from '../../../model/spec.ts';
import { expertVectors } from '../../../model/weights.ts';
import { type Addresses, type Builder, unitGroupsOf } from '../builder.ts';
import { groupsOf } from '../formats.ts';
import type { PairPlaces, Place } from '../program.ts';
import type { CpuRow } from '../row.ts';
import { servedActivations } from './activation.ts';
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
  /** As many ones, where the weights multiply inputs: what results are then summed up with. */
  readonly ones?: Place;
}

export const moeRows: readonly CpuRow[] = [
  {
    name: 'moe',
    device: 'cpu',
    operation: 'moe',
    modes: ['prompt', 'step'],
    tolerance: { relativeRms: int8Tolerance.relativeRms, reason: `${int8Tolerance.reason}, twice over` },
    layout: 'interleave4',
    serves: [
      ...servedActivations,
      'biases of experts',
      "a router's bias",
      "a router's own input",
      'scales of experts',
      'weights on the inputs of experts',
      'experts that give a row as it is',
      'scales of matrices of experts',
    ],
    accepts(request) {
      const { moe, prefix } = request.operation as MoeOperation;
      if (moe.zeroExperts !== undefined && (moe.scaled || moe.router.expertScale || moe.router.weighsInput)) {
        return 'gives rows as they are where weights are the router’s own and multiply outputs, found scales of experts or weights on inputs';
      }
      for (const [name, weight] of Object.entries(request.weights)) {
        if (expertVectors.has(name.slice(prefix.length + 1))) continue;
        const answer = acceptsMatrix(name, weight);
        if (answer !== true) return answer;
      }
      return true;
    },
    emit: (operation, builder) => emitMoe(operation as MoeOperation, builder),
  },
];

/** How many ids the router chooses among. */
function idsOf({ experts, zeroExperts = 0 }: MoeSpec): number {
  return experts + zeroExperts;
}

interface Names extends ExpertNames {
  readonly logits: string;
  readonly ids: string;
  readonly weights: string;
  readonly ones?: string;
}

function emitMoe(operation: MoeOperation, builder: Builder): void {
  const { moe, prefix, input, routerInput = input, output } = operation;
  const { activation, biases, router } = moe;
  const pairs = builder.rows * moe.used;
  const names: Names = {
    prefix,
    scaled: moe.scaled,
    input,
    logits: `${prefix}.logits`,
    ids: `${prefix}.ids`,
    weights: `${prefix}.weights`,
    inner: `${prefix}.inner`,
    activation,
    biases,
    ...(router.weighsInput ? { ones: `${prefix}.ones`, inputWeights: `${prefix}.weights` } : {}),
    output: `${prefix}.expertOut`,
    pairs: { order: `${prefix}.order`, orderRows: `${prefix}.orderRows`, active: `${prefix}.active` },
    optional: moe.zeroExperts !== undefined,
  };
  builder.declareValue(names.logits, idsOf(moe));
  for (const name of choiceOf(names)) builder.declare(name, pairs * 4, moe.used * 4);
  declareExperts(builder, names, { pairs, used: moe.used, experts: moe.experts, width: builder.width(output) });

  emitProduct(builder, {
    input: routerInput,
    weight: `${prefix}.router`,
    bias: router.bias ? `${prefix}.router.bias` : undefined,
    output: names.logits,
  });
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

/** What is written for each pair of a row and a rank. */
function choiceOf({ ids, weights, ones }: Names): readonly string[] {
  return ones === undefined ? [ids, weights] : [ids, weights, ones];
}

function routingOf(at: Addresses, names: Names): RoutingPlaces {
  const ones = names.ones === undefined ? {} : { ones: at.buffer(names.ones) };
  return { ids: at.buffer(names.ids), weights: at.buffer(names.weights), ...ones, ...placesOfPairs(at, names.pairs) };
}

function emitRoute(operation: MoeOperation, builder: Builder, names: Names): void {
  const { moe, prefix, layer } = operation;
  builder.emit({
    space: 'rows',
    reads: [names.logits],
    writes: [...choiceOf(names), ...Object.values(names.pairs)],
    scratch: (2 * idsOf(moe) + (moe.router.groups?.count ?? 0)) * 4,
    make: (at) => ({
      kind: 'route',
      logits: at.value(names.logits),
      routing: routingOf(at, names),
      experts: moe.experts,
      choices: idsOf(moe),
      used: moe.used,
      router: moe.router,
      bias: moe.router.selectionBias ? at.weight(`${prefix}.selectionBias`).offset : 0,
      expertScale: moe.router.expertScale ? at.weight(`${prefix}.expertScale`).offset : 0,
      outputScale: moe.scaled === true ? at.weight(`${prefix}.outputScale`).offset : 0,
      layer,
    }),
  });
}

/** The shared expert's gate and up, and its own gate's logit; independent of the router, so in its stage. */
function emitSharedIn({ moe, prefix, input, output }: MoeOperation, builder: Builder): void {
  const shared = moe.shared as NonNullable<MoeSpec['shared']>;
  const { activation } = moe;
  const names = { prefix: `${prefix}.shared`, input, inner: `${prefix}.sharedInner`, activation };
  builder.declareOperand(names.inner, `${prefix}.shared.down`);
  builder.declareValue(`${prefix}.sharedOut`, builder.width(output));
  emitGated(builder, names);
  if (shared.gated) {
    builder.declareValue(`${prefix}.sharedGate`, 1);
    emitProduct(builder, { input, weight: `${prefix}.shared.router`, output: `${prefix}.sharedGate` });
  }
}

function emitCombine(operation: MoeOperation, builder: Builder, names: Names): void {
  const { moe, prefix, input, output } = operation;
  const width = builder.width(output);
  const zero = moe.zeroExperts !== undefined;
  builder.declareValue(output, width);
  const shared = moe.shared === undefined ? [] : [`${prefix}.sharedOut`];
  const gate = moe.shared?.gated === true ? [`${prefix}.sharedGate`] : [];
  const weights = names.ones ?? names.weights;
  builder.emit({
    space: 'rows',
    reads: [names.output, weights, ...shared, ...gate, ...(zero ? [names.ids, input] : [])],
    writes: [output],
    make: (at) => ({
      kind: 'combine',
      experts: at.value(names.output),
      weights: at.buffer(weights),
      used: moe.used,
      width,
      shared: shared[0] === undefined ? undefined : at.value(shared[0]),
      gate: gate[0] === undefined ? undefined : at.value(gate[0]),
      zero: zero ? { ids: at.buffer(names.ids), from: moe.experts, input: at.value(input) } : undefined,
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
    readonly bias?: string;
    readonly output: string;
  },
): void {
  const { weight, bias, output } = names;
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
      bias: bias === undefined ? 0 : at.weight(bias).offset,
      wanted: 0,
    }),
  });
}
