/**
 * `gemma3`: Gemma 3 (arXiv 2503.19786), dense: norms before and behind each block, a norm on each query and key head, five
 * layers with a window for one that sees everything, each kind with a rotation of its own. GGUF stores norm weights with
 * the 1 that the model adds to them.
 */

import type { Family } from '../family.ts';
import { MOST } from '../family-reader.ts';
import type { AttentionSpec } from '../spec.ts';
import { noBias, readAttention, readBlockCount, readHeads, readStem } from './common.ts';
import { gemmaEmbedding, readCappedHead, readGemmaDense, readNorm, readWholeRope } from './gemma.ts';
import { readWindowRope, readWindows } from './windows.ts';

/**
 * Queries are scaled by the root of a number that no key of GGUF gives: the head's width, but in the model of 62 layers
 * (27B), whose heads are wider than its share of the hidden width, by the latter.
 */
const LAYERS_OF_27B = 62;

export const gemma3: Family = {
  architecture: 'gemma3',

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const windows = readWindows(reader, layerCount, { period: 6, whole: 'last' });
    const ropes = { whole: readWholeRope(reader, heads), windowed: readWindowRope(reader, heads, 10_000) };
    const inner = reader.count('feed_forward_length', { min: 1, max: MOST });
    const qkNorm = { over: 'head', epsilon: stem.norm.epsilon } as const;
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const reach = windows[layer];
      const rope = reach === undefined ? ropes.whole : ropes.windowed;
      const own = readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, qkNorm, bias: noBias });
      const share = layerCount === LAYERS_OF_27B ? stem.hidden / own.heads : own.headDim;
      const name = `layers.${layer}.attention.postNorm`;
      const attention: AttentionSpec = {
        ...own,
        scale: 1 / Math.sqrt(share),
        ...(reach === undefined ? {} : { reach }),
        postNorm: readNorm(reader, name, `blk.${layer}.post_attention_norm.weight`, stem),
      };
      const block = { inner, block: 'feedForward', postNorm: 'post_ffw_norm' } as const;
      return { attention, feedForward: readGemmaDense(reader, layer, stem, block) };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm } = stem;
    const embedding = gemmaEmbedding(stem);
    const head = readCappedHead(reader, stem);
    return { architecture: 'gemma3', vocabulary, hidden, trainedContext, embedding, layers, finalNorm, head };
  },
};
