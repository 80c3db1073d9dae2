/** `qwen3`: Qwen3 (arXiv 2505.09388), dense: a norm on each query and key head, no biases. */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { fullAttention, only, silu, unusedWindow } from '../hugging-face/dialect.ts';
import {
  noBias,
  readAttention,
  readBlockCount,
  readDense,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
} from './common.ts';

export const qwen3: Family = {
  architecture: 'qwen3',

  dialects: [
    {
      modelType: 'qwen3',
      fixed: { ...silu, ...fullAttention, attention_bias: only(false) },
      ignored: unusedWindow,
      needed: ['head_dim'],
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'half', dimensions: heads.headDim });
    const inner = reader.count('feed_forward_length', { min: 1, max: MOST });
    const qkNorm = { over: 'head', epsilon: stem.norm.epsilon } as const;
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, qkNorm, bias: noBias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      return { attention, feedForward: readDense(reader, layer, stem, { norm, inner }) };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'qwen3', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
