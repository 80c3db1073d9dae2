/**
 * The MoE layer. Step rows take three dispatches: the router's logits with the shared expert's own gate · the choice, gate and
 * up with their product, of all chosen experts and the shared one · down with the weighted sum. Prompt rows sort their
 * (row, rank) pairs by expert and multiply the rows of an expert together.
 */

import type { Demand } from '../../../model/demands.ts';
import type { MoeOperation, ValueName } from '../../../model/graph.ts';
import type { MoeSpec } from '../../../model/spec.ts';
import { expertVectors } from '../../../model/weights.ts';
import { type KernelRequest, MAX_STEP_ROWS, type Mode, type Tolerance, type WeightShape } from '../../kernel.ts';
import type { Builder } from '../builder.ts';
import { foreseenAfter } from '../foresee.ts';
import { acceptsWeight } from '../formats/index.ts';
import type { GpuRow } from '../row.ts';
import { servedActivations } from './activation.ts';
import { acceptsEncoding, type Encoding, f32Encoding, int8Encoding } from './lane-product.ts';
import { emitMatVec } from './matvec.ts';
import { bankOf, buffer, type MoeLayer, type RoutedLayer } from './moe-layer.ts';
import { emitPromptExperts } from './moe-prompt.ts';
import { choosesAlong, emitRoute } from './moe-route.ts';
import { emitStepExperts, MAX_INNER_BLOCKS } from './moe-step.ts';
import { emitRowNorm } from './rowwise.ts';
import { emitTiledSplit } from './tiled-split.ts';

/** What the choice keeps in workgroup memory is two f32 an expert and two words a group, of the 16 KiB that every device has. */
const MAX_EXPERTS = 1024;
const MAX_GROUPS = 256;
/** Partial sums of as many experts are in workgroup memory at once. */
const MAX_USED = 32;

const f32Tolerance: Tolerance = {
  relativeRms: 2e-6,
  reason: 'f32 sums in several lanes, twice over, and weights of a few ulp',
};

/** What all rows of a layer serve. */
export const servedOfExperts: readonly Demand[] = [
  ...servedActivations,
  'biases of experts',
  "a router's bias",
  "a router's own input",
  'scales of experts',
  'weights on the inputs of experts',
  'scales of matrices of experts',
];

/** @param encoding of what goes into the experts; the router sees f32 whatever it is */
function moeRow(name: string, mode: Mode, encoding: Encoding): GpuRow {
  return {
    name,
    device: 'gpu',
    operation: 'moe',
    modes: [mode],
    tolerance: encoding.id === 'f32' ? f32Tolerance : encoding.tolerance,
    layout: 'planes',
    serves: servedOfExperts,
    accepts(request) {
      const answer = acceptsLayer(request);
      if (answer !== true) return answer;
      return acceptsEncoding(
        encoding,
        request.features,
        matricesOf(request).filter(([part]) => !part.endsWith('.router')),
      );
    },
    emit: (operation, builder) =>
      emitMoe(operation as MoeOperation, builder, {
        mode,
        experts: (layer) => (mode === 'step' ? emitStepExperts(layer, encoding) : emitPromptExperts(layer)),
      }),
  };
}

/** A layer's matrices by name. */
function matricesOf({ operation, weights }: KernelRequest): [name: string, weight: WeightShape][] {
  const { prefix } = operation as MoeOperation;
  return Object.entries(weights).filter(
    ([part]) => part.startsWith(`${prefix}.`) && !expertVectors.has(part.slice(prefix.length + 1)),
  );
}

/** true, or what of a layer no row takes. */
export function acceptsLayer(request: KernelRequest): true | string {
  const answer = acceptsMoe((request.operation as MoeOperation).moe);
  if (answer !== true) return answer;
  for (const [part, { format, shape }] of matricesOf(request)) {
    if (shape.length < 2) return `${part}: needs a matrix, found [${shape.join(', ')}]`;
    const taken = acceptsWeight(part, format, shape.at(-1) as number);
    if (taken !== true) return taken;
  }
  return true;
}

function acceptsMoe(moe: MoeSpec): true | string {
  if (moe.scaled === true && moe.router.weighsInput)
    return 'scales what experts give by their weights, found weights on their inputs';
  if (moe.experts > MAX_EXPERTS) return `chooses among up to ${MAX_EXPERTS} experts, found ${moe.experts}`;
  const groups = moe.router.groups?.count ?? 0;
  if (groups > MAX_GROUPS) return `ranks up to ${MAX_GROUPS} groups of experts, found ${groups}`;
  if (moe.used > MAX_USED) return `sums up to ${MAX_USED} experts a row, found ${moe.used}`;
  const blocks = moe.used * Math.ceil(moe.inner / 32) + Math.ceil((moe.shared?.inner ?? 0) / 32);
  if (blocks > MAX_INNER_BLOCKS) {
    return `takes up to ${MAX_INNER_BLOCKS * 32} inner values a row, found ${blocks * 32}`;
  }
  return true;
}

export const moeRows: readonly GpuRow[] = [
  moeRow('moe-step-int8', 'step', int8Encoding),
  moeRow('moe-step', 'step', f32Encoding),
  moeRow('moe-prompt', 'prompt', f32Encoding),
];

/** @param how.experts emits what follows the choice of experts */
export function emitMoe(
  made: MoeOperation,
  builder: Builder,
  how: {
    readonly mode: Mode;
    /** The operation's input, where `made` has another one that was normed before. */
    readonly input?: ValueName;
    readonly experts: (layer: MoeLayer) => void;
  },
): void {
  const { mode, experts } = how;
  const { output, split } = made;
  // Many kernels of a prompt read the normed rows: they are made once.
  const operation = mode === 'prompt' ? withoutNorm(made, builder) : made;
  const layer: MoeLayer = { ...routedLayer(operation, builder), bank: bankOf(made, builder) };
  const { hidden, route, routeWidth } = layer;
  builder.declareValue(output, hidden);
  builder.declareBuffer(layer.logits, builder.rows * layer.logitsWidth * 4);
  builder.declareBuffer(layer.route, builder.rows * layer.routeWidth * 4);
  builder.declareBuffer(layer.inner, builder.rows * layer.innerWidth * 4);
  emitLogits(layer, mode);
  if (mode === 'prompt' || !choosesAlong(layer)) emitRoute(layer, mode);
  if (split !== undefined) {
    builder.ask(mode, { layer: made.layer, input: how.input ?? made.input, route, routeWidth });
  }
  experts(layer);
  if (mode === 'step' && split !== undefined && builder.foresees) emitAhead(made, builder);
}

/** What the router of the split layer behind `made` chooses when it is given the rows that `made` leaves; read when the run is over. */
function emitAhead(made: MoeOperation, builder: Builder): void {
  const next = foreseenAfter(builder.graph, made);
  if (next?.split === undefined) return;
  const layer = routedLayer({ ...next, input: made.output }, builder, ' ahead');
  const { logits, logitsWidth, route, routeWidth } = layer;
  builder.declareBuffer(logits, MAX_STEP_ROWS * logitsWidth * 4);
  builder.declareBuffer(route, MAX_STEP_ROWS * routeWidth * 4);
  emitLogits(layer, 'step');
  emitRoute(layer, 'step');
  builder.kept.add(route);
  builder.foreseen.push({ layer: next.layer, route, routeWidth });
}

/** @param which in the names of what is made */
function routedLayer(operation: MoeOperation, builder: Builder, which = ''): RoutedLayer {
  const { moe, prefix, output } = operation;
  const slot = Math.ceil(moe.inner / 32) * 32;
  const sharedSlot = Math.ceil((moe.shared?.inner ?? 0) / 32) * 32;
  return {
    operation,
    builder,
    hidden: builder.width(output),
    which,
    logits: `${prefix}.logits${which}`,
    logitsWidth: moe.experts + (moe.shared?.gated === true ? 1 : 0),
    route: `${prefix}.route${which}`,
    routeWidth: 2 * moe.used + 1,
    inner: `${prefix}.inner`,
    innerWidth: moe.used * slot + sharedSlot,
    slot,
    sharedSlot,
  };
}

/** The operation on rows that are normed already, by a dispatch of their own. */
function withoutNorm(operation: MoeOperation, builder: Builder): MoeOperation {
  return { ...operation, input: emitRowNorm(builder, 'prompt', operation), norm: undefined };
}

function emitLogits(layer: RoutedLayer, mode: Mode): void {
  const { operation, builder, which = '', logits, logitsWidth } = layer;
  const { moe, prefix, input, norm } = operation;
  const own = operation.routerInput;
  const router = builder.weight(`${prefix}.router`);
  const bias = moe.router.bias ? `${prefix}.router.bias` : undefined;
  const shared = moe.shared?.gated === true ? [builder.weight(`${prefix}.shared.router`)] : [];
  const common = {
    label: `${prefix}.router${which}`,
    encoding: f32Encoding,
    output: buffer(logits, 'write'),
    outputWidth: logitsWidth,
  };
  // Both read the same rows, normed here where that is fused, unless the router has rows of its own.
  if (mode === 'step' && own === undefined) {
    const weights = [{ weight: router, bias }, ...shared.map((weight) => ({ weight }))];
    emitMatVec(builder, mode, { ...common, norm, input, weights, wanted: false });
    return;
  }
  if (mode === 'prompt') emitTiledSplit(builder, { ...common, input: own ?? input, weight: router, bias });
  else
    emitMatVec(builder, mode, { ...common, input: own ?? input, weights: [{ weight: router, bias }], wanted: false });
  for (const weight of shared) {
    const label = `${prefix}.shared.router`;
    emitMatVec(builder, mode, {
      ...common,
      norm,
      label,
      input,
      outputOffset: moe.experts,
      weights: [{ weight }],
      wanted: false,
    });
  }
}
