/**
 * `laguna`: Poolside's Laguna: heads by layer, a gate on what heads have mixed, a norm on each query and key head, three
 * layers with a window for one that sees everything, each kind with a rotation of its own; first layers dense, then sigmoid
 * routing with a bias for the selection and a shared expert.
 */

import type { Family } from '../family.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import type { AttentionSpec, GateSpec } from '../spec.ts';
import {
  type Heads,
  noBias,
  readAttention,
  readBlockCount,
  readDense,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
  type Stem,
} from './common.ts';
import { readExperts, readRouting } from './experts.ts';
import { readWindowRope, readWindows } from './windows.ts';

export const laguna: Family = {
  architecture: 'laguna',

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const whole = readRope(reader, heads.headDim, { pairing: 'half' });
    // The largest model has no window at all.
    const windowed = reader.has('attention.sliding_window');
    const windows = windowed ? readWindows(reader, layerCount, { period: 4, whole: 'first' }) : [];
    const windowRope = windowed ? readWindowRope(reader, heads) : whole;
    const routing = readRouting(reader, { gating: 'sigmoid', selectionBias: true });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    const shared = { inner: reader.count('expert_shared_feed_forward_length', { min: 1, max: MOST }), gated: false };
    // Its width is given as it is, whatever it is made of.
    reader.ignoreKey('expert_shared_count', 'the width of the shared expert counts all of them');
    const dense = reader.count('leading_dense_block_count', { min: 0, max: layerCount });
    const denseInner = reader.count('feed_forward_length', { min: 1, max: MOST });
    const qkNorm = { over: 'head', epsilon: stem.norm.epsilon } as const;
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const reach = windows[layer];
      const rope = reach === undefined ? whole : windowRope;
      const attention: AttentionSpec = {
        ...readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, qkNorm, bias: noBias }),
        ...(reach === undefined ? {} : { reach }),
        gate: readGate(reader, layer, stem, heads),
      };
      const norm = readFeedForwardNorm(reader, layer, stem);
      const feedForward =
        layer < dense
          ? readDense(reader, layer, stem, { norm, inner: denseInner })
          : readExperts(reader, layer, stem, { norm, routing, inner, shared });
      return { attention, feedForward };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'laguna', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};

/** Published with one number a head and with one an element; which it is shows in the tensor's rows. */
function readGate(reader: FamilyReader, layer: number, { hidden }: Stem, all: Heads): GateSpec {
  const heads = all.heads[layer] as number;
  const tensor = `blk.${layer}.attn_gate.weight`;
  const per = reader.shapeOf(tensor)?.[0] === heads * all.valueDim ? 'element' : 'head';
  reader.weight(`layers.${layer}.attention.gate`, tensor, [per === 'head' ? heads : heads * all.valueDim, hidden]);
  return { activation: 'softplus', per };
}
