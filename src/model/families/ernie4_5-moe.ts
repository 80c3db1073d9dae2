/**
 * `ernie4_5-moe`: ERNIE 4.5 with experts, text only (Baidu's technical report of June 2025): the first layers dense, then
 * the experts with the greatest softmax + selection bias, weighted by the softmax alone, divided by their sum; a shared
 * expert.
 */

import type { Family } from '../family.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import { only, silu } from '../hugging-face/dialect.ts';
import type { SharedExpertSpec } from '../spec.ts';
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
import { readExperts, readRouting, readSharedCount } from './experts.ts';

export const ernie4_5Moe: Family = {
  architecture: 'ernie4_5-moe',

  dialects: [
    {
      modelType: 'ernie4_5_moe',
      fixed: { ...silu, moe_norm_min: only(1e-12) },
      keys: {
        expert_count: ['moe_num_experts'],
        expert_used_count: ['moe_k'],
        expert_shared_count: ['moe_num_shared_experts'],
        leading_dense_block_count: ['moe_layer_start_index'],
        interleave_moe_layer_step: ['moe_layer_interval'],
        'config.attention_bias': ['use_bias'],
        'config.moe_layer_end_index': ['moe_layer_end_index'],
      },
      tensors: { 'model.layers.N.mlp.moe_statics.e_score_correction_bias': 'blk.N.exp_probs_b.bias' },
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'adjacent', dimensions: heads.headDim });
    const routing = readRouting(reader, { gating: 'softmax', selectionBias: true, normalise: true, scale: 1 });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    const shared = reader.file.container === 'gguf' ? readSharedWidth(reader) : readSharedCount(reader, inner);
    checkLastLayer(reader, layerCount);
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

/** All shared experts together are one. */
function readSharedWidth(reader: FamilyReader): SharedExpertSpec | undefined {
  const inner = reader.count('expert_shared_feed_forward_length', { min: 0, max: MOST, default: 0 });
  reader.ignoreKey('expert_shared_count', 'their common width is given');
  return inner === 0 ? undefined : { inner, gated: false };
}

/**
 * GGUF has no dense layers behind those with experts; `config.json` could.
 * @throws CorruptFileError `corrupt_file`
 */
function checkLastLayer(reader: FamilyReader, layers: number): void {
  const key = 'config.moe_layer_end_index';
  if (reader.file.container === 'gguf' || !reader.has(key)) return;
  const last = reader.count(key, { min: -1, max: layers - 1 });
  if (last !== -1 && last !== layers - 1)
    throw reader.corruptKey(key, String(last), `-1 or ${layers - 1}, the last layer`);
}
