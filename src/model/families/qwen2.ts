/** `qwen2`: Qwen2 and Qwen2.5 (arXiv 2407.10671), dense: biases on query, key and value. */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import { fullAttention, silu, unusedWindow } from '../hugging-face/dialect.ts';
import {
  qkvBias,
  readAttention,
  readBlockCount,
  readDense,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
} from './common.ts';

export const qwen2: Family = {
  architecture: 'qwen2',

  dialects: [{ modelType: 'qwen2', fixed: { ...silu, ...fullAttention }, ignored: unusedWindow }],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'half', dimensions: heads.headDim });
    const inner = reader.count('feed_forward_length', { min: 1, max: MOST });
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, bias: qkvBias });
      const norm = readFeedForwardNorm(reader, layer, stem);
      return { attention, feedForward: readDense(reader, layer, stem, { norm, inner }) };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'qwen2', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};
