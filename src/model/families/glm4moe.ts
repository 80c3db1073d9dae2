/**
 * `glm4moe`: GLM-4.5 and GLM-4.6 (arXiv 2508.06471): the first layers dense, then sigmoid routing with a bias for the
 * selection and a shared expert; half of each head rotated. The file's last `nextn_predict_layers` layers predict tokens
 * further ahead; they draft and never change what the model says.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { silu } from '../hugging-face/dialect.ts';
import type { LayerSpec } from '../spec.ts';
import {
  biasAsInFile,
  checkConfig,
  readAttention,
  readBlockCount,
  readDense,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
} from './common.ts';
import { readExperts, readRouting, readSharedCount } from './experts.ts';
import { readLayersAhead } from './nextn.ts';

export const glm4moe: Family = {
  architecture: 'glm4moe',

  dialects: [
    {
      modelType: 'glm4_moe',
      fixed: silu,
      needed: ['head_dim'],
      tensors: {
        'model.layers.N.post_attention_layernorm': 'blk.N.post_attention_norm',
        'model.layers.N.eh_proj': 'blk.N.nextn.eh_proj',
        'model.layers.N.enorm': 'blk.N.nextn.enorm',
        'model.layers.N.hnorm': 'blk.N.nextn.hnorm',
        'model.layers.N.embed_tokens': 'blk.N.nextn.embed_tokens',
        'model.layers.N.shared_head.norm': 'blk.N.nextn.shared_head_norm',
        'model.layers.N.shared_head.head': 'blk.N.nextn.shared_head_head',
      },
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const ahead = reader.count('nextn_predict_layers', { min: 0, max: 64, default: 0 });
    const blocks = readBlockCount(reader, ahead);
    const layerCount = blocks - ahead;
    if (layerCount < 1) {
      throw reader.corruptKey(
        'nextn_predict_layers',
        String(ahead),
        `fewer than ${reader.fullKey('block_count')}, which is ${blocks}`,
      );
    }
    const heads = readHeads(reader, stem.hidden, blocks);
    const rope = readRope(reader, heads.headDim, { pairing: 'half' });
    const routing = readRouting(reader, { gating: 'sigmoid', selectionBias: true });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    const shared = readSharedCount(reader, inner);
    const dense = reader.count('leading_dense_block_count', { min: 0, max: blocks });
    const denseInner = reader.count('feed_forward_length', { min: 1, max: MOST });
    checkConfig(reader, 'use_qk_norm', 'blk.0.attn_q_norm.weight');
    // Published with and without (GLM-4.5 has query and key norms, GLM-4.5-Air has none); GGUF has no key for it.
    const qkNorm = reader.hasTensor('blk.0.attn_q_norm.weight')
      ? ({ over: 'head', epsilon: stem.norm.epsilon } as const)
      : undefined;
    const bias = biasAsInFile(reader);
    const readLayer = (layer: number): LayerSpec => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, qkNorm, bias });
      // Despite its name, this is the norm before the feed-forward block.
      const norm = readFeedForwardNorm(reader, layer, stem, 'post_attention_norm');
      const feedForward =
        layer < dense
          ? readDense(reader, layer, stem, { norm, inner: denseInner })
          : readExperts(reader, layer, stem, { norm, routing, inner, shared });
      return { attention, feedForward };
    };
    const layers = Array.from({ length: layerCount }, (_, layer) => readLayer(layer));
    const mtp = readLayersAhead(reader, { from: layerCount, ahead, stem }, () => readLayer(layerCount));
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'glm4moe', vocabulary, hidden, trainedContext, layers, finalNorm, head, mtp };
  },
};
