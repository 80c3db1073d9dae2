/**
 * `granitemoe`: Granite 3.x with experts (IBM): softmax over the selected experts, which is the softmax over all divided by
 * their sum. The file says what the embedding, scores, the output of every block and the logits are multiplied with. GGUF
 * stores its query and key rows permuted, so that rotated pairs are adjacent. Every layer has experts, and their width is
 * `feed_forward_length`.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { silu } from '../hugging-face/dialect.ts';
import {
  biasAsInFile,
  readAttention,
  readBlockCount,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
} from './common.ts';
import { readExperts, readRouting } from './experts.ts';

export const granitemoe: Family = {
  architecture: 'granitemoe',

  dialects: [
    {
      modelType: 'granitemoe',
      fixed: silu,
      keys: {
        'attention.scale': ['attention_multiplier'],
        embedding_scale: ['embedding_multiplier'],
        residual_scale: ['residual_multiplier'],
        logit_scale: ['logits_scaling'],
      },
      tensors: {
        'model.layers.N.block_sparse_moe.router.layer': 'blk.N.ffn_gate_inp',
        'model.layers.N.block_sparse_moe.output_linear.weight': 'blk.N.ffn_down_exps.weight',
      },
      fused: {
        'model.layers.N.block_sparse_moe.input_linear.weight': {
          parts: ['blk.N.ffn_gate_exps.weight', 'blk.N.ffn_up_exps.weight'],
          rows: 'halves',
        },
      },
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    // GGUF permutes the rows of queries and keys, as Llama's.
    const pairing = reader.file.container === 'gguf' ? 'adjacent' : 'half';
    const rope = readRope(reader, heads.headDim, { pairing, dimensions: heads.headDim });
    const routing = readRouting(reader, { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 });
    const inner = reader.count('feed_forward_length', { min: 1, max: MOST });
    const scale = reader.positiveFloat('attention.scale');
    const bias = biasAsInFile(reader);
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, bias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      const feedForward = readExperts(reader, layer, stem, { norm, routing, inner });
      return { attention: { ...attention, scale }, feedForward };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm } = stem;
    return {
      architecture: 'granitemoe',
      vocabulary,
      hidden,
      trainedContext,
      embedding: { scale: reader.positiveFloat('embedding_scale') },
      layers,
      residualScale: reader.positiveFloat('residual_scale'),
      finalNorm,
      // The file says what logits are divided by.
      head: { ...stem.head, logitScale: 1 / reader.positiveFloat('logit_scale') },
    };
  },
};
