/**
 * The one forward pass: a `ModelSpec` becomes a graph over T rows. Decode, verify, batched decode and prefill are all it; what
 * predicts further ahead is written here, too, of the same blocks: those of `attention-block.ts` and `feed-forward-block.ts`.
 */

import { InternalError } from '../errors.ts';
import { attentionBlock } from './attention-block.ts';
import { feedForwardBlock } from './feed-forward-block.ts';
import type { Graph, MtpSection, ValueName } from './graph.ts';
import { GraphBuilder, present } from './graph-builder.ts';
import type { ModelSpec, MtpSpec, NormSpec } from './spec.ts';

export function buildGraph(spec: ModelSpec): Graph {
  const builder = new GraphBuilder();
  let stream = builder.add(
    { kind: 'embed', layer: -1, weight: 'embedding', ...present({ scale: spec.embedding?.scale }), output: 'embedded' },
    spec.hidden,
  );
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
    if (layer.scaled) {
      const [weight, output] = [`layers.${index}.scale`, `layers.${index}.scaled`];
      stream = builder.add({ kind: 'scale', layer: index, input: stream, factor: 1, weight, output }, spec.hidden);
    }
    hidden.push(stream);
  });
  if (shortcut !== undefined) throw new InternalError('the last layer has a shortcut, and no layer after it to add it');
  const last = spec.layers.length;
  const normed = builder.norm(stream, { ...spec.finalNorm, layer: last, weight: 'finalNorm', output: 'normed' });
  hidden[last] = normed;
  const { tied, logitScale, softcap } = spec.head;
  // A product's input is narrower than its output, so it is scaled there.
  const input = builder.scaled(normed, { factor: logitScale, layer: last });
  const weight = tied ? 'embedding' : 'head';
  const logits = builder.add(
    { kind: 'head', layer: last, input, weight, ...present({ softcap }), output: 'logits' },
    spec.vocabulary,
  );
  const graph = { operations: builder.operations, widths: builder.widths, logits, hidden };
  if (spec.mtp === undefined) return graph;
  return { ...graph, mtp: mtpSection(builder, spec, spec.mtp, normed) };
}

/** What predicts further ahead; see {@link MtpSpec}. */
function mtpSection(builder: GraphBuilder, spec: ModelSpec, mtp: MtpSpec, given: ValueName): MtpSection {
  builder.mtp = true;
  const { hidden } = spec;
  const layer = spec.layers.length;
  const norm = (input: ValueName, { epsilon }: NormSpec, weight: string, output: ValueName) =>
    builder.norm(input, { epsilon, layer, weight: `mtp.${weight}`, output: `mtp.${output}` });
  const embedding = mtp.ownEmbedding ? 'mtp.embedding' : 'embedding';
  const embedded = builder.add({ kind: 'embed', layer, weight: embedding, output: 'mtp.embedded' }, hidden);
  const incoming = builder.add({ kind: 'incoming', layer, output: 'mtp.incoming' }, hidden);
  const left = norm(embedded, mtp.embeddingNorm, 'embeddingNorm', 'embedded.normed');
  const right = norm(incoming, mtp.hiddenNorm, 'hiddenNorm', 'incoming.normed');
  const both = builder.add({ kind: 'concat', layer, left, right, output: 'mtp.both' }, 2 * hidden);
  const projected = builder.add(
    { kind: 'linear', layer, input: both, weight: 'mtp.projection', output: 'mtp.projection' },
    hidden,
  );
  const attended = attentionBlock(builder, spec, mtp.layer.attention, layer, projected);
  const { stream } = feedForwardBlock(builder, spec, mtp.layer, layer, attended);
  const normed = norm(stream, mtp.finalNorm, 'finalNorm', 'normed');
  const head = mtp.ownHead ? 'mtp.head' : spec.head.tied ? 'embedding' : 'head';
  const logits = builder.add(
    { kind: 'head', layer, input: normed, weight: head, output: 'mtp.logits' },
    spec.vocabulary,
  );
  return { given, hidden: normed, logits };
}
