/**
 * The one forward pass: a `ModelSpec` becomes a graph over T rows. Decode, verify, batched decode and prefill are all it; what
 * predicts further ahead is written here, too, of the same blocks.
 */

import type { Graph, MtpSection, Operation, ValueName } from './graph.ts';
import type { AttentionSpec, FeedForwardSpec, ModelSpec, MtpSpec } from './spec.ts';

export function buildGraph(spec: ModelSpec): Graph {
  const builder = new GraphBuilder();
  let stream = builder.add({ kind: 'embed', layer: -1, weight: 'embedding', output: 'embedded' }, spec.hidden);
  const hidden = [stream];
  spec.layers.forEach((layer, index) => {
    stream = attentionBlock(builder, spec, layer.attention, index, stream);
    stream = feedForwardBlock(builder, spec, layer.feedForward, index, stream);
    hidden.push(stream);
  });
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
  const logits = builder.add(
    { kind: 'head', layer: last, input: normed, weight: spec.head.tied ? 'embedding' : 'head', output: 'logits' },
    spec.vocabulary,
  );
  const graph = { operations: builder.operations, widths: builder.widths, logits, hidden };
  if (spec.mtp === undefined) return graph;
  return { ...graph, mtp: mtpSection(builder, spec, spec.mtp, normed) };
}

/** What predicts further ahead; see `MtpSpec`. */
function mtpSection(builder: GraphBuilder, spec: ModelSpec, mtp: MtpSpec, given: ValueName): MtpSection {
  builder.mtp = true;
  const { hidden } = spec;
  const layer = spec.layers.length;
  const norm = (input: ValueName, weight: string, epsilon: number, output: ValueName) =>
    builder.add({ kind: 'norm', layer, input, weight, epsilon, group: hidden, output }, hidden);
  const embedding = mtp.ownEmbedding ? 'mtp.embedding' : 'embedding';
  const embedded = builder.add({ kind: 'embed', layer, weight: embedding, output: 'mtp.embedded' }, hidden);
  const incoming = builder.add({ kind: 'incoming', layer, output: 'mtp.incoming' }, hidden);
  const left = norm(embedded, 'mtp.embeddingNorm', mtp.embeddingNorm.epsilon, 'mtp.embedded.normed');
  const right = norm(incoming, 'mtp.hiddenNorm', mtp.hiddenNorm.epsilon, 'mtp.incoming.normed');
  const both = builder.add({ kind: 'concat', layer, left, right, output: 'mtp.both' }, 2 * hidden);
  let stream = builder.add(
    { kind: 'linear', layer, input: both, weight: 'mtp.projection', output: 'mtp.projection' },
    hidden,
  );
  stream = attentionBlock(builder, spec, mtp.layer.attention, layer, stream);
  stream = feedForwardBlock(builder, spec, mtp.layer.feedForward, layer, stream);
  const normed = norm(stream, 'mtp.finalNorm', mtp.finalNorm.epsilon, 'mtp.normed');
  const head = mtp.ownHead ? 'mtp.head' : spec.head.tied ? 'embedding' : 'head';
  const logits = builder.add(
    { kind: 'head', layer, input: normed, weight: head, output: 'mtp.logits' },
    spec.vocabulary,
  );
  return { given, hidden: normed, logits };
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
  const mixed = builder.add(
    { kind: 'attention', layer, query, key, value, heads, kvHeads, headDim, valueDim, scale, output: `${at}.mixed` },
    heads * valueDim,
  );
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
  return builder.add({ kind: 'add', layer, left: stream, right: output, output: `${at}.residual` }, spec.hidden);
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
  let output: ValueName;
  if (feedForward.kind === 'moe') {
    const prefix = `layers.${layer}.moe`;
    output = builder.add({ kind: 'moe', layer, input, prefix, moe: feedForward.moe, output: prefix }, spec.hidden);
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
  return builder.add({ kind: 'add', layer, left: stream, right: output, output: `${at}.residual` }, spec.hidden);
}

class GraphBuilder {
  readonly operations: Operation[] = [];
  readonly widths: Record<ValueName, number> = {};
  /** Whether what is added predicts further ahead. */
  mtp = false;

  add(operation: Operation, width: number): ValueName {
    this.operations.push(this.mtp ? { ...operation, mtp: true } : operation);
    this.widths[operation.output] = width;
    return operation.output;
  }
}
