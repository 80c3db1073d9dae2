/**
 * `minimax-m2`: MiniMax-M2: sigmoid routing with a bias for the selection, the selected weights divided by their sum, no
 * shared expert; a norm over the whole query and key projections, half of each head rotated. Every layer has experts.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { noBias, readAttention, readBlockCount, readFeedForwardNorm, readHeads, readRope, readStem } from './common.ts';
import { readExperts, readRouting } from './experts.ts';

export const minimaxM2: Family = {
  architecture: 'minimax-m2',

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'half' });
    const routing = readRouting(reader, { gating: 'sigmoid', selectionBias: true, normalise: true, scale: 1 });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    reader.ignoreKey('feed_forward_length', 'the width of dense layers, of which there are none');
    const qkNorm = { over: 'full', epsilon: stem.norm.epsilon } as const;
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, qkNorm, bias: noBias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      return { attention, feedForward: readExperts(reader, layer, stem, { norm, routing, inner }) };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'minimax-m2', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
