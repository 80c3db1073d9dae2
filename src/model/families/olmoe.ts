/**
 * `olmoe`: OLMoE (arXiv 2409.02060): a norm over the whole query and key projections, softmax over all experts, weights
 * as they are. Every layer has experts, and their width is `feed_forward_length`.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { only, silu } from '../hugging-face/dialect.ts';
import { noBias, readAttention, readBlockCount, readFeedForwardNorm, readHeads, readRope, readStem } from './common.ts';
import { readExperts, readRouting } from './experts.ts';

export const olmoe: Family = {
  architecture: 'olmoe',

  dialects: [{ modelType: 'olmoe', fixed: { ...silu, clip_qkv: only(null), attention_bias: only(false) } }],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'half', dimensions: heads.headDim });
    const routing = readRouting(reader, { gating: 'softmax', selectionBias: false, normalise: false, scale: 1 });
    const inner = reader.count('feed_forward_length', { min: 1, max: MOST });
    const qkNorm = { over: 'full', epsilon: stem.norm.epsilon } as const;
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, qkNorm, bias: noBias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      return { attention, feedForward: readExperts(reader, layer, stem, { norm, routing, inner }) };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'olmoe', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
