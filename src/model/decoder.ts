/** The one forward pass: a `ModelSpec` becomes a graph over T rows. Decode, verify, batched decode and prefill are all it. */

import { InternalError } from '../errors.ts';
import type { Graph, Operation, ValueName } from './graph.ts';
import type { AttentionSpec, LatentSpec, LayerSpec, ModelSpec, MoeSpec } from './spec.ts';

export function buildGraph(spec: ModelSpec): Graph {
  const builder = new GraphBuilder();
  const embedded = builder.add({ kind: 'embed', layer: -1, weight: 'embedding', output: 'embedded' }, spec.hidden);
  let stream = scaled(builder, embedded, spec.embedding?.scale, { layer: -1, width: spec.hidden });
  const hidden = [stream];
  let shortcut: ValueName | undefined;
  spec.layers.forEach((layer, index) => {
    stream = attentionBlock(builder, spec, layer.attention, index, stream);
    const block = feedForwardBlock(builder, spec, layer, index, stream);
    stream = block.stream;
    if (shortcut !== undefined) {
      const output = `layers.${index}.shortcut`;
      stream = builder.add({ kind: 'add', layer: index, left: stream, right: shortcut, output }, spec.hidden);
    }
    shortcut = block.shortcut;
    hidden.push(stream);
  });
  if (shortcut !== undefined) throw new InternalError('the last layer has a shortcut, and no layer after it to add it');
  const last = spec.layers.length;
  const normed = builder.add(
    {
      kind: 'norm',
      layer: last,
      input: stream,
      weight: 'finalNorm',
      epsilon: spec.finalNorm.epsilon,
      group: spec.hidden,
      output: 'normed',
    },
    spec.hidden,
  );
  hidden[last] = normed;
  // A product's input is narrower than its output, so it is scaled there.
  const input = scaled(builder, normed, spec.head.logitScale, { layer: last, width: spec.hidden });
  const logits = builder.add(
    { kind: 'head', layer: last, input, weight: spec.head.tied ? 'embedding' : 'head', output: 'logits' },
    spec.vocabulary,
  );
  return { operations: builder.operations, widths: builder.widths, logits, hidden };
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
  const input = builder.add(
    {
      kind: 'norm',
      layer,
      input: stream,
      weight: `${at}.norm`,
      epsilon: attention.norm.epsilon,
      group: spec.hidden,
      output: `${at}.input`,
    },
    spec.hidden,
  );
  const mixed =
    attention.latent === undefined
      ? headAttention(builder, attention, layer, input)
      : latentAttention(builder, attention, attention.latent, { layer, input });
  const output = builder.add(
    {
      kind: 'linear',
      layer,
      input: mixed,
      weight: `${at}.output`,
      bias: attention.bias.output ? `${at}.output.bias` : undefined,
      output: `${at}.output`,
    },
    spec.hidden,
  );
  return addResidual(builder, spec, { layer, stream, output, at });
}

/** Attention over each key head's own keys and values: [rows, heads·valueDim]. */
function headAttention(builder: GraphBuilder, attention: AttentionSpec, layer: number, input: ValueName): ValueName {
  const at = `layers.${layer}.attention`;
  const { heads, kvHeads, headDim, valueDim, scale, bias } = attention;
  const project = (name: 'query' | 'key' | 'value', width: number) =>
    builder.add(
      {
        kind: 'linear',
        layer,
        input,
        weight: `${at}.${name}`,
        bias: bias[name] ? `${at}.${name}.bias` : undefined,
        output: `${at}.${name}`,
      },
      width,
    );
  let query = project('query', heads * headDim);
  let key = project('key', kvHeads * headDim);
  const value = project('value', kvHeads * valueDim);
  if (attention.qkNorm !== undefined) {
    const { over, epsilon } = attention.qkNorm;
    const norm = (name: 'query' | 'key', source: ValueName, width: number) =>
      builder.add(
        {
          kind: 'norm',
          layer,
          input: source,
          weight: `${at}.${name}Norm`,
          epsilon,
          group: over === 'head' ? headDim : width,
          output: `${at}.${name}.normed`,
        },
        width,
      );
    query = norm('query', query, heads * headDim);
    key = norm('key', key, kvHeads * headDim);
  }
  if (attention.rope !== undefined) {
    const { rope } = attention;
    query = builder.add(
      { kind: 'rope', layer, input: query, headDim, rope, output: `${at}.query.rotated` },
      heads * headDim,
    );
    key = builder.add(
      { kind: 'rope', layer, input: key, headDim, rope, output: `${at}.key.rotated` },
      kvHeads * headDim,
    );
  }
  return builder.add(
    { kind: 'attention', layer, query, key, value, heads, kvHeads, headDim, valueDim, scale, output: `${at}.mixed` },
    heads * valueDim,
  );
}

/** Attention over latents, see {@link LatentSpec}: [rows, heads·headValueDim]. */
function latentAttention(
  builder: GraphBuilder,
  { heads, kvHeads, headDim, valueDim, scale, rope }: AttentionSpec,
  { queryRank, plainDim, headValueDim, norm, scale: latentScale }: LatentSpec,
  { layer, input }: { readonly layer: number; readonly input: ValueName },
): ValueName {
  const at = `layers.${layer}.attention`;
  const rotated = headDim - valueDim;
  const { epsilon } = norm;
  const project = (name: string, source: ValueName, width: number) =>
    builder.add({ kind: 'linear', layer, input: source, weight: `${at}.${name}`, output: `${at}.${name}` }, width);
  const rotate = (name: 'query' | 'key', rotatedInput: ValueName, dim: number, width: number) => {
    if (rope === undefined) return rotatedInput;
    const from = dim - rotated;
    return builder.add(
      { kind: 'rope', layer, input: rotatedInput, headDim: dim, rope, from, output: `${at}.${name}.rotated` },
      width,
    );
  };

  let source = input;
  if (queryRank !== undefined) {
    const down = project('query.down', input, queryRank);
    const weight = `${at}.query.downNorm`;
    source = builder.add(
      { kind: 'norm', layer, input: down, weight, epsilon, group: queryRank, output: `${down}.normed` },
      queryRank,
    );
  }
  const queryDim = plainDim + rotated;
  const query = rotate('query', project('query', source, heads * queryDim), queryDim, heads * queryDim);
  const absorbed = builder.add(
    {
      kind: 'headLinear',
      layer,
      input: query,
      weight: `${at}.key.up`,
      heads,
      rest: rotated,
      output: `${at}.query.absorbed`,
    },
    heads * headDim,
  );

  const latent = project('latent', input, headDim);
  const normed = builder.add(
    {
      kind: 'norm',
      layer,
      input: latent,
      weight: `${at}.latentNorm`,
      epsilon,
      group: valueDim,
      rest: rotated,
      output: `${latent}.normed`,
    },
    headDim,
  );
  const sized = scaled(builder, normed, latentScale, { layer, width: headDim, rest: rotated });
  const key = rotate('key', sized, headDim, headDim);
  const mixed = builder.add(
    {
      kind: 'attention',
      layer,
      query: absorbed,
      key,
      heads,
      kvHeads,
      headDim,
      valueDim,
      scale,
      output: `${at}.mixedLatent`,
    },
    heads * valueDim,
  );
  return builder.add(
    { kind: 'headLinear', layer, input: mixed, weight: `${at}.value.up`, heads, output: `${at}.mixed` },
    heads * headValueDim,
  );
}

/** x + feedForward(norm(x)), dense or mixture of experts; and what experts beside it give, which is not added here. */
function feedForwardBlock(
  builder: GraphBuilder,
  spec: ModelSpec,
  { feedForward, shortcut }: LayerSpec,
  layer: number,
  stream: ValueName,
): { readonly stream: ValueName; readonly shortcut?: ValueName } {
  const at = `layers.${layer}.feedForward`;
  const input = builder.add(
    {
      kind: 'norm',
      layer,
      input: stream,
      weight: `${at}.norm`,
      epsilon: feedForward.norm.epsilon,
      group: spec.hidden,
      output: `${at}.input`,
    },
    spec.hidden,
  );
  const prefix = `layers.${layer}.moe`;
  const experts = (moe: MoeSpec) =>
    builder.add({ kind: 'moe', layer, input, prefix, moe, output: prefix }, spec.hidden);
  let output: ValueName;
  if (feedForward.kind === 'moe') {
    output = experts(feedForward.moe);
  } else {
    const { inner, activation } = feedForward;
    const gate = builder.add({ kind: 'linear', layer, input, weight: `${at}.gate`, output: `${at}.gate` }, inner);
    const up = builder.add({ kind: 'linear', layer, input, weight: `${at}.up`, output: `${at}.up` }, inner);
    const gated = builder.add({ kind: 'glu', layer, gate, up, activation, output: `${at}.gated` }, inner);
    output = builder.add(
      { kind: 'linear', layer, input: gated, weight: `${at}.down`, output: `${at}.down` },
      spec.hidden,
    );
  }
  return {
    stream: addResidual(builder, spec, { layer, stream, output, at }),
    ...(shortcut === undefined ? {} : { shortcut: experts(shortcut) }),
  };
}

/** What a block gives, times the model's residual scale, on top of the stream. */
function addResidual(
  builder: GraphBuilder,
  spec: ModelSpec,
  block: { readonly layer: number; readonly stream: ValueName; readonly output: ValueName; readonly at: string },
): ValueName {
  const { layer, stream, at } = block;
  const right = scaled(builder, block.output, spec.residualScale, { layer, width: spec.hidden });
  return builder.add({ kind: 'add', layer, left: stream, right, output: `${at}.residual` }, spec.hidden);
}

/** A value times a factor; the value itself where there is none. */
function scaled(
  builder: GraphBuilder,
  input: ValueName,
  factor: number | undefined,
  { layer, width, rest }: { readonly layer: number; readonly width: number; readonly rest?: number },
): ValueName {
  if (factor === undefined || factor === 1) return input;
  const spared = rest === undefined ? {} : { rest };
  return builder.add({ kind: 'scale', layer, input, factor, ...spared, output: `${input}.scaled` }, width);
}

class GraphBuilder {
  readonly operations: Operation[] = [];
  readonly widths: Record<ValueName, number> = {};

  add(operation: Operation, width: number): ValueName {
    this.operations.push(operation);
    this.widths[operation.output] = width;
    return operation.output;
  }
}
