/**
 * The one forward pass: a `ModelSpec` becomes a graph over T rows. Decode, verify, batched decode and prefill are all it. The
 * blocks of a layer are written by `attention-block.ts` and `feed-forward-block.ts`.
 */

import { InternalError } from '../errors.ts';
import { attentionBlock } from './attention-block.ts';
import { feedForwardBlock } from './feed-forward-block.ts';
import type { Graph, ValueName } from './graph.ts';
import { GraphBuilder, present } from './graph-builder.ts';
import type { ModelSpec } from './spec.ts';

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
  return { operations: builder.operations, widths: builder.widths, logits, hidden };
}
