/**
 * `minimax-m2`: MiniMax-M2: sigmoid routing with a bias for the selection, the selected weights divided by their sum, no
 * shared expert; a norm over the whole query and key projections, half of each head rotated. Every layer has experts.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { only, silu } from '../hugging-face/dialect.ts';
import { noBias, readAttention, readBlockCount, readFeedForwardNorm, readHeads, readRope, readStem } from './common.ts';
import { readExperts, readRouting } from './experts.ts';

export const minimaxM2: Family = {
  architecture: 'minimax-m2',

  dialects: [
    {
      modelType: 'minimax_m2',
      fixed: {
        ...silu,
        scoring_func: only('sigmoid'),
        use_qk_norm: only(true),
        use_routing_bias: only(true),
      },
      needed: ['head_dim'],
      keys: {
        expert_feed_forward_length: ['intermediate_size'],
        feed_forward_length: [],
        'config.rotary_dim': ['rotary_dim'],
      },
      tensors: {
        'model.layers.N.block_sparse_moe.gate': 'blk.N.ffn_gate_inp',
        'model.layers.N.block_sparse_moe.e_score_correction_bias': 'blk.N.exp_probs_b.bias',
        'model.layers.N.block_sparse_moe.experts.E.w1': 'blk.N.ffn_gate.E',
        'model.layers.N.block_sparse_moe.experts.E.w3': 'blk.N.ffn_up.E',
        'model.layers.N.block_sparse_moe.experts.E.w2': 'blk.N.ffn_down.E',
      },
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    // `config.json` may say it as a share of a head, as a number of elements, or both.
    const rotated = reader.configNumber('rotary_dim');
    const rope = readRope(reader, heads.headDim, { pairing: 'half', dimensions: rotated });
    if (rotated !== undefined && rotated !== rope.dimensions) {
      throw reader.corruptKey('config.rotary_dim', String(rotated), `${rope.dimensions}, as the share of a head says`);
    }
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
