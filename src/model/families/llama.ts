/**
 * `llama`: Llama 1 to 3 and what shares its shape (Mistral, SmolLM2 …), dense, and with experts Mixtral (arXiv
 * 2401.04088). GGUF stores its query and key rows permuted, so that rotated pairs are adjacent; safetensors
 * have them as published, the second of a pair in the other half of the head.
 */

import { Refusal } from '../../errors.ts';
import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { only, silu } from '../hugging-face/dialect.ts';
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

export const llama: Family = {
  architecture: 'llama',

  dialects: [
    { modelType: 'llama', fixed: { ...silu, mlp_bias: only(false) } },
    {
      modelType: 'mixtral',
      fixed: { ...silu, sliding_window: only(null) },
      tensors: {
        'model.layers.N.block_sparse_moe.gate': 'blk.N.ffn_gate_inp',
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
    // The oldest files leave out what was the same for every Llama.
    const rope = readRope(reader, heads.headDim, {
      pairing: reader.file.container === 'gguf' ? 'adjacent' : 'half',
      dimensions: heads.headDim,
      base: 10_000,
      factors: true,
    });
    const bias = biasAsInFile(reader);
    const inner = reader.counts('feed_forward_length', layerCount, { min: 1, max: MOST });
    const sparse = reader.count('expert_count', { min: 0, max: MOST, default: 0 }) > 0;
    if (!sparse) reader.count('expert_used_count', { min: 0, max: 0, default: 0 });
    // Mixtral: softmax over all experts, the selected weights divided by their sum.
    const routing = sparse
      ? readRouting(reader, { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 })
      : undefined;
    if (reader.has('tensor_data_layout')) {
      const layout = reader.text('tensor_data_layout');
      if (layout !== 'Meta AI original pth') {
        throw new Refusal(
          `${reader.file.name}: ${reader.fullKey('tensor_data_layout')} is ${JSON.stringify(layout)}, which is not ` +
            'supported; supported is "Meta AI original pth" (rotated pairs are adjacent)',
        );
      }
    }
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, bias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      const width = inner[layer] as number;
      const feedForward = routing
        ? readExperts(reader, layer, stem, { norm, routing, inner: width })
        : readDense(reader, layer, stem, { norm, inner: width });
      return { attention, feedForward };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'llama', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
