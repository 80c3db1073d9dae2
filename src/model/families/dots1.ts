/**
 * `dots1`: dots.llm1 (arXiv 2506.05767): the first layers dense, then sigmoid routing with a bias for the selection and a
 * shared expert; a norm on each query and key head.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { each, only, silu } from '../hugging-face/dialect.ts';
import {
  noBias,
  readAttention,
  readBlockCount,
  readDense,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
} from './common.ts';
import { readExperts, readRouting, readSharedCount } from './experts.ts';

export const dots1: Family = {
  architecture: 'dots1',

  dialects: [
    {
      modelType: 'dots1',
      fixed: {
        ...silu,
        attention_bias: only(false),
        layer_types: each('full_attention'),
        scoring_func: only('sigmoid'),
      },
      needed: ['head_dim'],
      ignored: {
        sliding_window: 'no layer has a sliding window (layer_types)',
        max_window_layers: 'no layer has a sliding window (layer_types)',
      },
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'half', dimensions: heads.headDim });
    const routing = readRouting(reader, { gating: 'sigmoid', selectionBias: true });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    const shared = readSharedCount(reader, inner);
    const dense = reader.count('leading_dense_block_count', { min: 0, max: layerCount });
    const denseInner = reader.count('feed_forward_length', { min: 1, max: MOST });
    const qkNorm = { over: 'head', epsilon: stem.norm.epsilon } as const;
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, qkNorm, bias: noBias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      const feedForward =
        layer < dense
          ? readDense(reader, layer, stem, { norm, inner: denseInner })
          : readExperts(reader, layer, stem, { norm, routing, inner, shared });
      return { attention, feedForward };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'dots1', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
