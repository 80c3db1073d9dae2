/** The one forward pass: a `ModelSpec` becomes a graph over T rows. Decode, verify, batched decode and prefill are all it. */

import type { Graph, Operation, ValueName, WeightName } from './graph.ts';
import type {
  AttentionSpec,
  DenseBlockSpec,
  FeedForwardSpec,
  ModelSpec,
  MoeBlockSpec,
  NormSpec,
  QkNormSpec,
} from './spec.ts';

export function buildGraph(spec: ModelSpec): Graph {
  const builder = new GraphBuilder();
  let stream = builder.add(
    { kind: 'embed', layer: -1, weight: 'embedding', ...scaleOf(spec), output: 'embedded' },
    spec.hidden,
  );
  const hidden = [stream];
  spec.layers.forEach((layer, index) => {
    stream = attentionBlock(builder, spec, layer.attention, index, stream);
    stream = feedForwardBlock(builder, spec, layer.feedForward, index, stream);
    if (layer.scaled) {
      const weight = `layers.${index}.scale`;
      stream = builder.add(
        { kind: 'scale', layer: index, input: stream, factor: 1, weight, output: `layers.${index}.scaled` },
        spec.hidden,
      );
    }
    hidden.push(stream);
  });
  const last = spec.layers.length;
  const normed = builder.norm(stream, { ...spec.finalNorm, layer: last, weight: 'finalNorm', output: 'normed' });
  hidden[last] = normed;
  const { tied, softcap } = spec.head;
  const head = { kind: 'head', layer: last, input: normed, weight: tied ? 'embedding' : 'head' } as const;
  const logits = builder.add(
    { ...head, ...(softcap === undefined ? {} : { softcap }), output: 'logits' },
    spec.vocabulary,
  );
  return { operations: builder.operations, widths: builder.widths, logits, hidden };
}

/** An absent field stays absent, so that a graph is the same after a journey as JSON. */
function scaleOf({ embedding }: ModelSpec): { readonly scale?: number } {
  return embedding === undefined ? {} : { scale: embedding.scale };
}

/** x + W_o·attention(norm(x)). */
function attentionBlock(
  builder: GraphBuilder,
  spec: ModelSpec,
  attention: AttentionSpec,
  layer: number,
  stream: ValueName,
): ValueName {
  const at = `layers.${layer}.attention`;
  const { heads, kvHeads, headDim, valueDim, scale, bias } = attention;
  const input = builder.norm(stream, { ...attention.norm, layer, weight: `${at}.norm`, output: `${at}.input` });
  const project = (name: 'query' | 'key' | 'value' | 'gate', width: number) =>
    builder.add(
      {
        kind: 'linear',
        layer,
        input,
        weight: `${at}.${name}`,
        bias: name !== 'gate' && bias[name] ? `${at}.${name}.bias` : undefined,
        output: `${at}.${name}`,
      },
      width,
    );
  // All products side by side: they do not wait for one another.
  const queries = project('query', heads * headDim);
  const keys = project('key', kvHeads * headDim);
  let value = attention.valueIsKey ? keys : project('value', kvHeads * valueDim);
  const gate = attention.gate && project('gate', attention.gate.per === 'head' ? heads : heads * valueDim);
  const query = turned(builder, attention, layer, 'query', queries);
  const key = turned(builder, attention, layer, 'key', keys);
  if (attention.valueNorm !== undefined) {
    const { epsilon } = attention.valueNorm;
    value = builder.norm(value, { epsilon, layer, group: valueDim, output: `${at}.value.normed` });
  }
  const { reach, temperature } = attention;
  let mixed = builder.add(
    {
      kind: 'attention',
      layer,
      query,
      key,
      value,
      heads,
      kvHeads,
      headDim,
      valueDim,
      scale,
      ...(reach === undefined ? {} : { reach }),
      ...(attention.sinks ? { sinks: `${at}.sinks` } : {}),
      ...(temperature === undefined ? {} : { temperature }),
      output: `${at}.mixed`,
    },
    heads * valueDim,
  );
  if (attention.gate !== undefined && gate !== undefined) {
    const { activation } = attention.gate;
    mixed = builder.add(
      { kind: 'gate', layer, input: mixed, gate, activation, output: `${at}.gated` },
      heads * valueDim,
    );
  }
  const output = builder.add(
    {
      kind: 'linear',
      layer,
      input: mixed,
      weight: `${at}.output`,
      bias: bias.output ? `${at}.output.bias` : undefined,
      output: `${at}.output`,
    },
    spec.hidden,
  );
  const right = builder.postNorm(output, { norm: attention.postNorm, layer, at });
  return builder.add({ kind: 'add', layer, left: stream, right, output: `${at}.residual` }, spec.hidden);
}

/** Projected queries or keys, normed and rotated as the layer does it. */
function turned(
  builder: GraphBuilder,
  { qkNorm, rope, headDim }: AttentionSpec,
  layer: number,
  name: 'query' | 'key',
  projected: ValueName,
): ValueName {
  const at = `layers.${layer}.attention.${name}`;
  const width = builder.width(projected);
  const norm = (input: ValueName, { over, epsilon, unweighted }: QkNormSpec) =>
    builder.norm(input, {
      epsilon,
      layer,
      group: over === 'head' ? headDim : width,
      weight: unweighted ? undefined : `${at}Norm`,
      output: `${at}.normed`,
    });
  let value = projected;
  if (qkNorm !== undefined && !qkNorm.afterRope) value = norm(value, qkNorm);
  if (rope !== undefined) {
    value = builder.add({ kind: 'rope', layer, input: value, headDim, rope, output: `${at}.rotated` }, width);
  }
  return qkNorm?.afterRope ? norm(value, qkNorm) : value;
}

/** x + feedForward(norm(x)), dense or mixture of experts. */
function feedForwardBlock(
  builder: GraphBuilder,
  spec: ModelSpec,
  feedForward: FeedForwardSpec,
  layer: number,
  stream: ValueName,
): ValueName {
  const at = `layers.${layer}.feedForward`;
  const output =
    feedForward.kind === 'moe'
      ? experts(builder, feedForward, layer, stream)
      : dense(builder, feedForward, { layer, at, stream });
  return builder.add({ kind: 'add', layer, left: stream, right: output, output: `${at}.residual` }, spec.hidden);
}

/** postNorm(W_down(act(W_gate·n) ⊙ W_up·n)), n = norm(x). */
function dense(
  builder: GraphBuilder,
  { norm, inner, activation, postNorm }: DenseBlockSpec,
  { layer, at, stream }: { readonly layer: number; readonly at: string; readonly stream: ValueName },
): ValueName {
  const input = builder.norm(stream, { ...norm, layer, weight: `${at}.norm`, output: `${at}.input` });
  const gate = builder.add({ kind: 'linear', layer, input, weight: `${at}.gate`, output: `${at}.gate` }, inner);
  const up = builder.add({ kind: 'linear', layer, input, weight: `${at}.up`, output: `${at}.up` }, inner);
  const gated = builder.add({ kind: 'glu', layer, gate, up, activation, output: `${at}.gated` }, inner);
  const output = builder.add(
    { kind: 'linear', layer, input: gated, weight: `${at}.down`, output: `${at}.down` },
    builder.width(stream),
  );
  return builder.postNorm(output, { norm: postNorm, layer, at });
}

/** The experts of a layer, with what stands before, behind and beside them. */
function experts(
  builder: GraphBuilder,
  { norm, moe, postNorm, routerNorm, beside }: MoeBlockSpec,
  layer: number,
  stream: ValueName,
): ValueName {
  const at = `layers.${layer}.feedForward`;
  const prefix = `layers.${layer}.moe`;
  const width = builder.width(stream);
  // The dense block first: what is read last stands last.
  const other = beside && dense(builder, beside, { layer, at: `layers.${layer}.beside`, stream });
  const input = builder.norm(stream, { ...norm, layer, weight: `${at}.norm`, output: `${at}.input` });
  const routerInput = routerNorm && ownRouterInput(builder, routerNorm, layer, stream);
  const made = builder.add(
    { kind: 'moe', layer, input, ...(routerInput === undefined ? {} : { routerInput }), prefix, moe, output: prefix },
    width,
  );
  const output = builder.postNorm(made, { norm: postNorm, layer, at });
  if (beside === undefined || other === undefined) return output;
  const sum = builder.add({ kind: 'add', layer, left: other, right: output, output: `layers.${layer}.sum` }, width);
  const weight = `layers.${layer}.beside.sumNorm`;
  return builder.norm(sum, { ...beside.sumNorm, layer, weight, output: `layers.${layer}.sum.normed` });
}

function ownRouterInput(
  builder: GraphBuilder,
  { epsilon, scale }: NonNullable<MoeBlockSpec['routerNorm']>,
  layer: number,
  stream: ValueName,
): ValueName {
  const at = `layers.${layer}.feedForward`;
  const normed = builder.norm(stream, { epsilon, layer, weight: `${at}.routerNorm`, output: `${at}.routerNormed` });
  return builder.add(
    { kind: 'scale', layer, input: normed, factor: scale, output: `${at}.routerInput` },
    builder.width(stream),
  );
}

class GraphBuilder {
  readonly operations: Operation[] = [];
  readonly widths: Record<ValueName, number> = {};

  add(operation: Operation, width: number): ValueName {
    this.operations.push(operation);
    this.widths[operation.output] = width;
    return operation.output;
  }

  width(name: ValueName): number {
    return this.widths[name] as number;
  }

  /** A norm of whole rows, or of groups in them. */
  norm(
    input: ValueName,
    given: NormSpec & {
      readonly layer: number;
      readonly weight?: WeightName;
      readonly group?: number;
      readonly output: ValueName;
    },
  ): ValueName {
    const { layer, weight, epsilon, output } = given;
    const width = this.width(input);
    const group = given.group ?? width;
    return this.add(
      { kind: 'norm', layer, input, ...(weight === undefined ? {} : { weight }), epsilon, group, output },
      width,
    );
  }

  /** A block's output, normed where the block has a norm behind it. */
  postNorm(
    output: ValueName,
    { norm, layer, at }: { readonly norm: NormSpec | undefined; readonly layer: number; readonly at: string },
  ): ValueName {
    if (norm === undefined) return output;
    return this.norm(output, { ...norm, layer, weight: `${at}.postNorm`, output: `${at}.postNormed` });
  }
}
