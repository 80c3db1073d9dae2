/**
 * `qwen2moe`: Qwen1.5-MoE and Qwen2-57B-A14B: softmax over all experts, weights as they are unless the file says that
 * they are normalised, and a shared expert with a gate of its own. Every layer has experts.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { fullAttention, only, silu, sparseEverywhere, unusedWindow } from '../hugging-face/dialect.ts';
import {
  qkvBias,
  readAttention,
  readBlockCount,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
} from './common.ts';
import { readExperts, readRouting } from './experts.ts';

export const qwen2moe: Family = {
  architecture: 'qwen2moe',

  dialects: [
    {
      modelType: 'qwen2_moe',
      fixed: { ...silu, ...fullAttention, ...sparseEverywhere, qkv_bias: only(true) },
      ignored: unusedWindow,
      keys: { expert_shared_feed_forward_length: ['shared_expert_intermediate_size'] },
      tensors: {
        'model.layers.N.mlp.shared_expert.gate_proj': 'blk.N.ffn_gate_shexp',
        'model.layers.N.mlp.shared_expert.up_proj': 'blk.N.ffn_up_shexp',
        'model.layers.N.mlp.shared_expert.down_proj': 'blk.N.ffn_down_shexp',
        'model.layers.N.mlp.shared_expert_gate': 'blk.N.ffn_gate_inp_shexp',
      },
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'half', dimensions: heads.headDim });
    const routing = readRouting(reader, { gating: 'softmax', selectionBias: false, normalise: false, scale: 1 });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    const shared = { inner: reader.count('expert_shared_feed_forward_length', { min: 1, max: MOST }), gated: true };
    reader.ignoreKey('feed_forward_length', 'the width of dense layers, of which there are none');
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, bias: qkvBias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      return { attention, feedForward: readExperts(reader, layer, stem, { norm, routing, inner, shared }) };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'qwen2moe', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
