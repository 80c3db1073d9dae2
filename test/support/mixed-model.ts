/** A model in numbers alone: a dense layer and mixtures with all that they may have, of weights in many formats. */

import type { ModelSpec } from '../../src/model/spec.ts';
import type { Weight, Weights } from '../../src/model/weights.ts';
import { formatBytes } from '../../src/quant/index.ts';

const norm = { epsilon: 1e-6 };
const attention: ModelSpec['layers'][number]['attention'] = {
  norm,
  heads: 4,
  kvHeads: 2,
  headDim: 64,
  valueDim: 32,
  scale: 0.125,
  qkNorm: { over: 'head', epsilon: 1e-6 },
  rope: { pairing: 'half', dimensions: 32, base: 10000, scaling: { kind: 'none' } },
  bias: { query: true, key: false, value: false, output: false },
};

const spec: ModelSpec = {
  architecture: 'tiny',
  vocabulary: 1001,
  hidden: 256,
  trainedContext: 1024,
  finalNorm: norm,
  head: { tied: false },
  layers: [
    { attention, feedForward: { kind: 'dense', norm, inner: 768, activation: 'silu' } },
    ...(['softmax', 'sigmoid'] as const).map((gating) => ({
      attention,
      feedForward: {
        kind: 'moe' as const,
        norm,
        moe: {
          experts: 8,
          used: 3,
          inner: 256,
          activation: 'silu' as const,
          shared: { inner: 512, gated: gating === 'softmax' },
          router: { gating, selectionBias: gating === 'sigmoid', normalise: true, scale: 1 },
        },
      },
    })),
  ],
};

function weightsOf(): Weights {
  const weights = new Map<string, Weight>();
  const add = (name: string, format: string, ...shape: number[]) => {
    const bytes = formatBytes(
      format,
      shape.reduce((a, b) => a * b, 1),
    );
    weights.set(name, { name, format, shape, parts: [], bytes });
  };
  add('embedding', 'Q6_K', 1001, 256);
  add('head', 'Q8_0', 1001, 256);
  add('finalNorm', 'F32', 256);
  spec.layers.forEach(({ feedForward }, layer) => {
    const at = `layers.${layer}`;
    for (const name of ['attention.norm', 'feedForward.norm']) add(`${at}.${name}`, 'F32', 256);
    for (const name of ['queryNorm', 'keyNorm']) add(`${at}.attention.${name}`, 'F32', 64);
    add(`${at}.attention.query.bias`, 'F32', 256);
    add(`${at}.attention.query`, 'Q4_K', 256, 256);
    add(`${at}.attention.key`, 'Q4_K', 128, 256);
    add(`${at}.attention.value`, 'BF16', 64, 256);
    add(`${at}.attention.output`, 'Q5_0', 256, 128);
    if (feedForward.kind === 'dense') {
      add(`${at}.feedForward.gate`, 'Q4_K', 768, 256);
      add(`${at}.feedForward.up`, 'Q4_K', 768, 256);
      add(`${at}.feedForward.down`, 'Q6_K', 256, 768);
      return;
    }
    const { moe } = feedForward;
    add(`${at}.moe.router`, 'F32', 8, 256);
    if (moe.router.selectionBias) add(`${at}.moe.selectionBias`, 'F32', 8);
    add(`${at}.moe.gate`, 'Q4_K', 8, 256, 256);
    add(`${at}.moe.up`, 'Q5_K', 8, 256, 256);
    add(`${at}.moe.down`, 'Q8_0', 8, 256, 256);
    add(`${at}.moe.shared.gate`, 'BF16', 512, 256);
    add(`${at}.moe.shared.up`, 'BF16', 512, 256);
    add(`${at}.moe.shared.down`, 'Q6_K', 256, 512);
    if (moe.shared?.gated === true) add(`${at}.moe.shared.router`, 'F32', 1, 256);
  });
  return weights;
}

export const mixedModel = { spec, weights: weightsOf() };

/** With its last layer once more, as one that predicts further ahead. */
export const mixedModelAhead = { spec: specAhead(), weights: weightsAhead() };

function specAhead(): ModelSpec {
  const [, , layer] = spec.layers;
  if (layer === undefined) throw new Error('the model has three layers');
  const norms = { embeddingNorm: norm, hiddenNorm: norm, finalNorm: norm };
  return { ...spec, mtp: { layer, ...norms, ownEmbedding: false, ownHead: false } };
}

function weightsAhead(): Weights {
  const all = new Map(mixedModel.weights);
  const add = (name: string, weight: Omit<Weight, 'name'>) => void all.set(name, { ...weight, name });
  for (const [name, weight] of mixedModel.weights) {
    if (name.startsWith('layers.2.')) add(name.replace('layers.2.', 'layers.3.'), weight);
    if (name === 'finalNorm')
      for (const part of ['embeddingNorm', 'hiddenNorm', 'finalNorm']) add(`mtp.${part}`, weight);
  }
  add('mtp.projection', { format: 'Q4_K', shape: [256, 512], parts: [], bytes: formatBytes('Q4_K', 256 * 512) });
  return all;
}
