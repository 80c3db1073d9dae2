/** Writes a layer's attention block: over each key head's own keys and values, or over latents. */

import type { ValueName } from './graph.ts';
import { type GraphBuilder, present } from './graph-builder.ts';
import type { AttentionSpec, LatentSpec, ModelSpec, QkNormSpec } from './spec.ts';

/** x + postNorm(W_o·attention(norm(x))). */
export function attentionBlock(
  builder: GraphBuilder,
  { residualScale }: ModelSpec,
  attention: AttentionSpec,
  layer: number,
  stream: ValueName,
): ValueName {
  const at = `layers.${layer}.attention`;
  const input = builder.norm(stream, { ...attention.norm, layer, weight: `${at}.norm`, output: `${at}.input` });
  const mixed =
    attention.latent === undefined
      ? headAttention(builder, attention, layer, input)
      : latentAttention(builder, attention, attention.latent, { layer, input });
  const made = builder.add(
    {
      kind: 'linear',
      layer,
      input: mixed,
      weight: `${at}.output`,
      bias: attention.bias.output ? `${at}.output.bias` : undefined,
      output: `${at}.output`,
    },
    builder.width(stream),
  );
  const output = builder.postNorm(made, { norm: attention.postNorm, layer, at });
  return builder.residual(stream, { output, scale: residualScale, layer, at });
}

/** Attention over each key head's own keys and values: [rows, heads·valueDim]. */
function headAttention(builder: GraphBuilder, attention: AttentionSpec, layer: number, input: ValueName): ValueName {
  const at = `layers.${layer}.attention`;
  const { heads, kvHeads, headDim, valueDim, bias } = attention;
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
  const mixed = attend(builder, attention, layer, { query, key, value });
  if (attention.gate === undefined || gate === undefined) return mixed;
  const { activation } = attention.gate;
  return builder.add({ kind: 'gate', layer, input: mixed, gate, activation, output: `${at}.gated` }, heads * valueDim);
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

/** Attention over latents, see {@link LatentSpec}: [rows, heads·headValueDim]. */
function latentAttention(
  builder: GraphBuilder,
  attention: AttentionSpec,
  { queryRank, plainDim, headValueDim, norm, scale }: LatentSpec,
  { layer, input }: { readonly layer: number; readonly input: ValueName },
): ValueName {
  const at = `layers.${layer}.attention`;
  const { heads, headDim, valueDim, rope } = attention;
  /** Elements at the end of a query, and of a key, that are rotated and have no part in the latent. */
  const rest = headDim - valueDim;
  const project = (name: string, source: ValueName, width: number) =>
    builder.add({ kind: 'linear', layer, input: source, weight: `${at}.${name}`, output: `${at}.${name}` }, width);
  const rotate = (name: 'query' | 'key', source: ValueName, dim: number) => {
    if (rope === undefined) return source;
    return builder.add(
      { kind: 'rope', layer, input: source, headDim: dim, rope, from: dim - rest, output: `${at}.${name}.rotated` },
      builder.width(source),
    );
  };

  let source = input;
  if (queryRank !== undefined) {
    const down = project('query.down', input, queryRank);
    source = builder.norm(down, { ...norm, layer, weight: `${at}.query.downNorm`, output: `${down}.normed` });
  }
  const queryDim = plainDim + rest;
  const queries = rotate('query', project('query', source, heads * queryDim), queryDim);
  const query = builder.add(
    { kind: 'headLinear', layer, input: queries, weight: `${at}.key.up`, heads, rest, output: `${at}.query.absorbed` },
    heads * headDim,
  );

  const latent = project('latent', input, headDim);
  const output = `${latent}.normed`;
  const normed = builder.norm(latent, { ...norm, layer, weight: `${at}.latentNorm`, group: valueDim, rest, output });
  const key = rotate('key', builder.scaled(normed, { factor: scale, layer, rest }), headDim);

  const mixed = attend(builder, attention, layer, { query, key });
  return builder.add(
    { kind: 'headLinear', layer, input: mixed, weight: `${at}.value.up`, heads, output: `${at}.mixed.values` },
    heads * headValueDim,
  );
}

/** What queries mix: [rows, heads·valueDim]. Without a value it is the beginning of its key. */
function attend(
  builder: GraphBuilder,
  { heads, kvHeads, headDim, valueDim, scale, reach, sinks, temperature }: AttentionSpec,
  layer: number,
  inputs: { readonly query: ValueName; readonly key: ValueName; readonly value?: ValueName },
): ValueName {
  const at = `layers.${layer}.attention`;
  return builder.add(
    {
      kind: 'attention',
      layer,
      ...inputs,
      heads,
      kvHeads,
      headDim,
      valueDim,
      scale,
      ...present({ reach, sinks: sinks && `${at}.sinks`, temperature }),
      output: `${at}.mixed`,
    },
    heads * valueDim,
  );
}
