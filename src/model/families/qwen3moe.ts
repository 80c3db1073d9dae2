/**
 * `qwen3moe`: Qwen3-30B-A3B and its kin (arXiv 2505.09388): softmax over all experts, the selected weights divided by
 * their sum, no shared expert. Every layer has experts.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { fullAttention, only, silu, sparseEverywhere, unusedWindow } from '../hugging-face/dialect.ts';
import { noBias, readAttention, readBlockCount, readFeedForwardNorm, readHeads, readRope, readStem } from './common.ts';
import { readExperts, readRouting } from './experts.ts';

export const qwen3moe: Family = {
  architecture: 'qwen3moe',

  dialects: [
    {
      modelType: 'qwen3_moe',
      fixed: { ...silu, ...fullAttention, ...sparseEverywhere, attention_bias: only(false) },
      ignored: unusedWindow,
      needed: ['head_dim'],
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'half', dimensions: heads.headDim });
    const routing = readRouting(reader, { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    reader.ignoreKey('feed_forward_length', 'the width of dense layers, of which there are none');
    const qkNorm = { over: 'head', epsilon: stem.norm.epsilon } as const;
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, qkNorm, bias: noBias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      return { attention, feedForward: readExperts(reader, layer, stem, { norm, routing, inner }) };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'qwen3moe', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
