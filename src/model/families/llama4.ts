/**
 * `llama4`: Llama 4 (Scout, Maverick): attention within chunks, but for every fourth layer, which sees everything, does not
 * rotate and sharpens its scores with the position; a router that weighs the inputs of experts, and a shared expert. The
 * chunk, the sharpening and the norms of queries and keys have no key in GGUF.
 */

import { Refusal } from '../../errors.ts';
import type { Family } from '../family.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import type { AttentionSpec, FeedForwardSpec } from '../spec.ts';
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
import { readExperts, readRouting } from './experts.ts';

/** Positions of a chunk; the same length steers the sharpening of scores. */
const CHUNK = 8192;
const SHARPENING = 0.1;
/** One layer of so many, the last of them, sees everything. */
const PERIOD = 4;
/** The model of so many experts (Maverick) norms neither queries nor keys. */
const EXPERTS_WITHOUT_QK_NORM = 128;

export const llama4: Family = {
  architecture: 'llama4',

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const rope = readRope(reader, heads.headDim, { pairing: 'adjacent', factors: true });
    refuseOtherWindows(reader);
    const routing = readRouting(reader, { gating: 'sigmoid', selectionBias: false, normalise: false, scale: 1 });
    const step = reader.count('interleave_moe_layer_step', { min: 1, max: MOST });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    const denseInner = reader.count('feed_forward_length', { min: 1, max: MOST });
    const { epsilon } = stem.norm;
    const readBlock = (layer: number): FeedForwardSpec => {
      const norm = readFeedForwardNorm(reader, layer, stem);
      if (layer % step !== step - 1) return readDense(reader, layer, stem, { norm, inner: denseInner });
      const shared = { inner, gated: false };
      const block = readExperts(reader, layer, stem, { norm, routing, inner, shared });
      return { ...block, moe: { ...block.moe, router: { ...block.moe.router, weighsInput: true } } };
    };
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const facts = { norm: stem.norm, bias: noBias };
      const attention: AttentionSpec =
        layer % PERIOD === PERIOD - 1
          ? {
              ...readAttention(reader, layer, stem, heads, facts),
              temperature: { length: CHUNK, scale: SHARPENING },
            }
          : {
              ...readAttention(reader, layer, stem, heads, { ...facts, rope }),
              reach: { kind: 'chunk', length: CHUNK },
              ...(routing.experts === EXPERTS_WITHOUT_QK_NORM
                ? {}
                : { qkNorm: { over: 'head', epsilon, unweighted: true, afterRope: true } }),
            };
      return { attention, feedForward: readBlock(layer) };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'llama4', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};

/** @throws Refusal `refused` for a chunk, or an order of layers, that no published model has */
function refuseOtherWindows(reader: FamilyReader): void {
  for (const [key, only] of [
    ['attention.sliding_window', CHUNK],
    ['attention.chunk_size', CHUNK],
    ['attention.sliding_window_pattern', PERIOD],
  ] as const) {
    const found = reader.count(key, { min: 0, max: MOST, default: only });
    if (found === only) continue;
    throw new Refusal(`${reader.file.name}: ${reader.fullKey(key)} is ${found}; only ${only} is supported`, {
      data: { key: reader.fullKey(key), found },
    });
  }
}
