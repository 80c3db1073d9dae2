/**
 * `ernie4_5-moe`: ERNIE 4.5 with experts, text only (Baidu's technical report of June 2025): the first layers dense, then
 * the experts with the greatest softmax + selection bias, weighted by the softmax alone, divided by their sum; a shared
 * expert.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import {
  biasAsInFile,
  readAttention,
  readBlockCount,
  readDense,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
} from './common.ts';
import { readExperts, readRouting } from './experts.ts';

export const ernie4_5Moe: Family = {
  architecture: 'ernie4_5-moe',

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'adjacent', dimensions: heads.headDim });
    const routing = readRouting(reader, { gating: 'softmax', selectionBias: true, normalise: true, scale: 1 });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    // The width of all shared experts together, which are one.
    const sharedInner = reader.count('expert_shared_feed_forward_length', { min: 0, max: MOST, default: 0 });
    reader.ignoreKey('expert_shared_count', 'their common width is given');
    const shared = sharedInner === 0 ? undefined : { inner: sharedInner, gated: false };
    const dense = reader.count('leading_dense_block_count', { min: 0, max: layerCount });
    const every = reader.count('interleave_moe_layer_step', { min: 1, max: layerCount });
    const denseInner = reader.count('feed_forward_length', { min: 1, max: MOST });
    // Published with and without; GGUF has no key for it.
    const bias = biasAsInFile(reader);
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, bias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      const sparse = layer >= dense && (layer + 1) % every === 0;
      const feedForward = sparse
        ? readExperts(reader, layer, stem, { norm, routing, inner, shared })
        : readDense(reader, layer, stem, { norm, inner: denseInner });
      return { attention, feedForward };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'ernie4_5-moe', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
