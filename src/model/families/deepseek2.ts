/**
 * `deepseek2`: DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437) and what shares their shape under the same name:
 * Kimi-K2, GLM-4.7-Flash. Latent attention; the first layers dense, then experts by softmax, or by sigmoid with a bias for
 * the selection, which may be limited to the best groups; shared experts.
 */

import type { Family } from '../family.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import { yarnMagnitude } from '../rope.ts';
import type { RopeSpec } from '../spec.ts';
import { readBlockCount, readDense, readFeedForwardNorm, readRope, readStem } from './common.ts';
import { readExperts, readRouting, readSharedCount } from './experts.ts';
import { readLatentAttention, readLatentSizes } from './latent.ts';

/** Not in the file: the official norms over low ranks have this epsilon, whatever the others have. */
const LATENT_EPSILON = 1e-6;

export const deepseek2: Family = {
  architecture: 'deepseek2',

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const sizes = readLatentSizes(reader);
    const read = readRope(reader, sizes.latent + sizes.rotated, { pairing: 'adjacent' });
    const { rope, sharpness } = readYarnShare(reader, read);
    const scale = sharpness ** 2 / Math.sqrt(sizes.plainDim + sizes.rotated);
    const dense = reader.count('leading_dense_block_count', { min: 0, max: layerCount });
    const denseInner = reader.count('feed_forward_length', { min: 1, max: MOST });
    // V3 has a bias for the selection, V2 none; GGUF has no key for it. The oldest V2 files do not name the gating either.
    const selectionBias = reader.hasTensor(`blk.${dense}.exp_probs_b.bias`);
    const routing = readRouting(reader, { gating: 'softmax', selectionBias, normalise: false, scale: 1 });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    const shared = readSharedCount(reader, inner);
    const attentionFacts = { sizes, norm: stem.norm, latentNorm: { epsilon: LATENT_EPSILON }, rope, scale };
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const attention = readLatentAttention(reader, layer, stem, attentionFacts);
      const norm = readFeedForwardNorm(reader, layer, stem);
      const feedForward =
        layer < dense
          ? readDense(reader, layer, stem, { norm, inner: denseInner })
          : readExperts(reader, layer, stem, { norm, routing, inner, shared });
      return { attention, feedForward };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'deepseek2', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};

/**
 * With YaRN these models sharpen the scores, by the square of 1 + 0.1 · m · ln(factor), in place of the longer cosines and
 * sines. The file says 0.1 · m; without it they are lengthened as usual.
 */
function readYarnShare(reader: FamilyReader, rope: RopeSpec): { readonly rope: RopeSpec; readonly sharpness: number } {
  const { scaling } = rope;
  if (scaling.kind !== 'yarn') return { rope, sharpness: 1 };
  const multiplier = reader.float('rope.scaling.yarn_log_multiplier', { default: 0 });
  if (multiplier === 0) return { rope, sharpness: 1 };
  const magnitude = scaling.magnitude / yarnMagnitude(scaling.factor);
  const sharpness = scaling.factor <= 1 ? 1 : 1 + multiplier * Math.log(scaling.factor);
  return { rope: { ...rope, scaling: { ...scaling, magnitude } }, sharpness };
}
