/**
 * The MoE layer. Step rows take four dispatches: the router's logits with the shared expert's own gate · the choice · gate and
 * up with their product, of all chosen experts and the shared one · down with the weighted sum. Prompt rows sort their
 * (row, rank) pairs by expert and multiply the rows of an expert together.
 */

import type { MoeOperation } from '../../../model/graph.ts';
import type { Mode } from '../../kernel.ts';
import type { Builder } from '../builder.ts';
import { acceptsWeight } from '../formats/index.ts';
import type { GpuRow } from '../row.ts';
import { emitTiled } from './linear.ts';
import { emitMatVec } from './matvec.ts';
import { buffer, type MoeLayer, value } from './moe-layer.ts';
import { emitPromptExperts } from './moe-prompt.ts';
import { emitRoute } from './moe-route.ts';
import { emitStepExperts } from './moe-step.ts';

/** What the choice keeps in workgroup memory is two f32 an expert and two words a group, of the 16 KiB that every device has. */
const MAX_EXPERTS = 1024;
const MAX_GROUPS = 256;
/** Partial sums of as many experts are in workgroup memory at once. */
const MAX_USED = 32;

export const moeRows: readonly GpuRow[] = [
  {
    name: 'moe',
    device: 'gpu',
    operation: 'moe',
    modes: ['prompt', 'step'],
    tolerance: { relativeRms: 2e-6, reason: 'f32 sums in several lanes, twice over, and weights of a few ulp' },
    layout: 'planes',
    accepts(request) {
      const { moe, prefix } = request.operation as MoeOperation;
      if (moe.activation !== 'silu') return `gates with silu, found ${moe.activation}`;
      if (moe.experts > MAX_EXPERTS) return `chooses among up to ${MAX_EXPERTS} experts, found ${moe.experts}`;
      const groups = moe.router.groups?.count ?? 0;
      if (groups > MAX_GROUPS) return `ranks up to ${MAX_GROUPS} groups of experts, found ${groups}`;
      if (moe.used > MAX_USED) return `sums up to ${MAX_USED} experts a row, found ${moe.used}`;
      for (const [name, { format, shape }] of Object.entries(request.weights)) {
        if (name === `${prefix}.selectionBias`) continue;
        if (shape.length < 2) return `${name}: needs a matrix, found [${shape.join(', ')}]`;
        const answer = acceptsWeight(name, format, shape.at(-1) as number);
        if (answer !== true) return answer;
      }
      return true;
    },
    emit: (operation, builder, mode) => emitMoe(operation as MoeOperation, builder, mode),
  },
];

function emitMoe(operation: MoeOperation, builder: Builder, mode: Mode): void {
  const { moe, prefix, output } = operation;
  const hidden = builder.width(output);
  const slot = Math.ceil(moe.inner / 32) * 32;
  const sharedSlot = Math.ceil((moe.shared?.inner ?? 0) / 32) * 32;
  const layer: MoeLayer = {
    operation,
    builder,
    hidden,
    logits: `${prefix}.logits`,
    logitsWidth: moe.experts + (moe.shared?.gated === true ? 1 : 0),
    route: `${prefix}.route`,
    routeWidth: 2 * moe.used + 1,
    inner: `${prefix}.inner`,
    innerWidth: moe.used * slot + sharedSlot,
    slot,
    sharedSlot,
  };
  builder.declareValue(output, hidden);
  builder.declareBuffer(layer.logits, builder.rows * layer.logitsWidth * 4);
  builder.declareBuffer(layer.route, builder.rows * layer.routeWidth * 4);
  builder.declareBuffer(layer.inner, builder.rows * layer.innerWidth * 4);
  emitLogits(layer, mode);
  emitRoute(layer, mode);
  if (mode === 'step') emitStepExperts(layer);
  else emitPromptExperts(layer);
}

function emitLogits(layer: MoeLayer, mode: Mode): void {
  const { operation, builder, logits, logitsWidth } = layer;
  const { moe, prefix, input } = operation;
  const router = builder.weight(`${prefix}.router`);
  const shared = moe.shared?.gated === true ? [builder.weight(`${prefix}.shared.router`)] : [];
  const common = { label: `${prefix}.router`, output: buffer(logits, 'write'), outputWidth: logitsWidth };
  if (mode === 'step') {
    const weights = [router, ...shared].map((weight) => ({ weight }));
    emitMatVec(builder, mode, { ...common, input, weights, wanted: false });
    return;
  }
  emitTiled(builder, { ...common, input: value(input, 'read'), weight: router });
  for (const weight of shared) {
    const label = `${prefix}.shared.router`;
    emitMatVec(builder, mode, {
      ...common,
      label,
      input,
      outputOffset: moe.experts,
      weights: [{ weight }],
      wanted: false,
    });
  }
}
