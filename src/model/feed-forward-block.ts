/** Writes a layer's feed-forward block: dense, or a mixture of experts with what stands before, behind and beside it. */

import type { ValueName } from './graph.ts';
import { type GraphBuilder, present } from './graph-builder.ts';
import type { DenseBlockSpec, LayerSpec, ModelSpec, MoeBlockSpec } from './spec.ts';

/** x + feedForward(norm(x)); and what experts beside it give over the same normed rows, which is not added here. */
export function feedForwardBlock(
  builder: GraphBuilder,
  { residualScale }: ModelSpec,
  { feedForward, shortcut }: LayerSpec,
  layer: number,
  stream: ValueName,
): { readonly stream: ValueName; readonly shortcut?: ValueName } {
  const at = `layers.${layer}.feedForward`;
  const input = builder.norm(stream, { ...feedForward.norm, layer, weight: `${at}.norm`, output: `${at}.input` });
  const output =
    feedForward.kind === 'moe'
      ? experts(builder, feedForward, { layer, stream, input })
      : dense(builder, feedForward, { layer, at, input });
  const summed = builder.residual(stream, { output, scale: residualScale, layer, at });
  if (shortcut === undefined) return { stream: summed };
  const prefix = `layers.${layer}.moe`;
  const beside = builder.add(
    { kind: 'moe', layer, input, prefix, moe: shortcut, output: prefix },
    builder.width(stream),
  );
  return { stream: summed, shortcut: beside };
}

/** postNorm(W_down(act(W_gate·n) ⊙ W_up·n)), n the normed input. */
function dense(
  builder: GraphBuilder,
  { inner, activation, postNorm }: DenseBlockSpec,
  { layer, at, input }: { readonly layer: number; readonly at: string; readonly input: ValueName },
): ValueName {
  const gate = builder.add({ kind: 'linear', layer, input, weight: `${at}.gate`, output: `${at}.gate` }, inner);
  const up = builder.add({ kind: 'linear', layer, input, weight: `${at}.up`, output: `${at}.up` }, inner);
  const gated = builder.add({ kind: 'glu', layer, gate, up, activation, output: `${at}.gated` }, inner);
  const output = builder.add(
    { kind: 'linear', layer, input: gated, weight: `${at}.down`, output: `${at}.down` },
    builder.width(input),
  );
  return builder.postNorm(output, { norm: postNorm, layer, at });
}

/** The experts of a layer, with the dense block beside them where there is one. */
function experts(
  builder: GraphBuilder,
  { moe, postNorm, routerNorm, beside }: MoeBlockSpec,
  { layer, stream, input }: { readonly layer: number; readonly stream: ValueName; readonly input: ValueName },
): ValueName {
  const prefix = `layers.${layer}.moe`;
  const width = builder.width(stream);
  // The dense block first: what is read last stands last.
  const other = beside && denseBeside(builder, beside, layer, stream);
  const routerInput = routerNorm && ownRouterInput(builder, routerNorm, layer, stream);
  const made = builder.add(
    { kind: 'moe', layer, input, ...present({ routerInput }), prefix, moe, output: prefix },
    width,
  );
  const output = builder.postNorm(made, { norm: postNorm, layer, at: `layers.${layer}.feedForward` });
  if (beside === undefined || other === undefined) return output;
  const sum = builder.add({ kind: 'add', layer, left: other, right: output, output: `layers.${layer}.sum` }, width);
  const weight = `layers.${layer}.beside.sumNorm`;
  return builder.norm(sum, { ...beside.sumNorm, layer, weight, output: `layers.${layer}.sum.normed` });
}

function denseBeside(builder: GraphBuilder, block: DenseBlockSpec, layer: number, stream: ValueName): ValueName {
  const at = `layers.${layer}.beside`;
  const input = builder.norm(stream, { ...block.norm, layer, weight: `${at}.norm`, output: `${at}.input` });
  return dense(builder, block, { layer, at, input });
}

function ownRouterInput(
  builder: GraphBuilder,
  { epsilon, scale }: NonNullable<MoeBlockSpec['routerNorm']>,
  layer: number,
  stream: ValueName,
): ValueName {
  const at = `layers.${layer}.feedForward`;
  const output = `${at}.routerInput`;
  const normed = builder.norm(stream, { epsilon, layer, weight: `${at}.routerNorm`, output });
  return builder.scaled(normed, { factor: scale, layer });
}
