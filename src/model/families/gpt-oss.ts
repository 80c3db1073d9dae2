/**
 * `gpt-oss`: OpenAI's gpt-oss (arXiv 2508.10925): attention with a sink a head and a window in every second layer, experts
 * with biases and a clamped SwiGLU, a softmax over the selected experts alone. Its YaRN does not round its bounds, which no
 * key of GGUF says.
 */

import type { Family } from '../family.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import { only, silu } from '../hugging-face/dialect.ts';
import type { AttentionSpec, ClampedSwiglu, RopeSpec } from '../spec.ts';
import {
  readAttention,
  readBlockCount,
  readFeedForwardNorm,
  readHeads,
  readRope,
  readStem,
  type Stem,
} from './common.ts';
import { type Routing, readExperts, readRouting } from './experts.ts';
import { readWindows } from './windows.ts';

const bias: AttentionSpec['bias'] = { query: true, key: true, value: true, output: true };
const activation: ClampedSwiglu = { kind: 'clampedSwiglu', alpha: 1.702, limit: 7 };

export const gptOss: Family = {
  architecture: 'gpt-oss',

  dialects: [
    {
      modelType: 'gpt_oss',
      fixed: {
        ...silu,
        attention_bias: only(true),
        swiglu_alpha: only(activation.alpha),
        swiglu_limit: only(activation.limit),
      },
      needed: ['head_dim', 'layer_types'],
      keys: {
        expert_feed_forward_length: ['intermediate_size'],
        feed_forward_length: [],
        'attention.sliding_window': ['sliding_window'],
        'attention.sliding_window_pattern': ['layer_types'],
      },
      tensors: {
        'model.layers.N.post_attention_layernorm': 'blk.N.post_attention_norm',
        'model.layers.N.self_attn.sinks': 'blk.N.attn_sinks.weight',
        'model.layers.N.mlp.router': 'blk.N.ffn_gate_inp',
        'model.layers.N.mlp.experts.down_proj_bias': 'blk.N.ffn_down_exps.bias',
      },
      fused: {
        'model.layers.N.mlp.experts.gate_up_proj': {
          parts: ['blk.N.ffn_gate_exps.weight', 'blk.N.ffn_up_exps.weight'],
          rows: 'turns',
          transposed: true,
        },
        'model.layers.N.mlp.experts.gate_up_proj_bias': {
          parts: ['blk.N.ffn_gate_exps.bias', 'blk.N.ffn_up_exps.bias'],
          rows: 'turns',
        },
        'model.layers.N.mlp.experts.down_proj': {
          parts: ['blk.N.ffn_down_exps.weight'],
          rows: 'halves',
          transposed: true,
        },
      },
    },
  ],

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    const heads = readHeads(reader, stem.hidden, layerCount);
    const said = readRope(reader, heads.headDim, { pairing: 'half', dimensions: heads.headDim });
    const rope = reader.file.container === 'gguf' ? untruncated(said) : said;
    const windows = readWindows(reader, layerCount, { period: 2, whole: 'last' });
    const routing = readRouting(reader, { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 });
    const inner = reader.count('expert_feed_forward_length', { min: 1, max: MOST });
    reader.ignoreKey('feed_forward_length', 'the width of dense layers, of which there are none');
    const layers = Array.from({ length: layerCount }, (_, layer) => {
      const reach = windows[layer];
      const sinks = `layers.${layer}.attention.sinks`;
      reader.weight(sinks, `blk.${layer}.attn_sinks.weight`, [heads.heads[layer] as number]);
      const attention: AttentionSpec = {
        ...readAttention(reader, layer, stem, heads, { norm: stem.norm, rope, bias }),
        ...(reach === undefined ? {} : { reach }),
        sinks: true,
      };
      // Despite its name, this is the norm before the feed-forward block.
      const norm = readFeedForwardNorm(reader, layer, stem, 'post_attention_norm');
      const block = readExperts(reader, layer, stem, { norm, routing, inner });
      claimBiases(reader, layer, stem, { routing, inner });
      const router = { ...block.moe.router, bias: true } as const;
      return { attention, feedForward: { ...block, moe: { ...block.moe, activation, biases: true, router } as const } };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm, head } = stem;
    return { architecture: 'gpt-oss', vocabulary, hidden, trainedContext, layers, finalNorm, head };
  },
};

function untruncated(rope: RopeSpec): RopeSpec {
  return rope.scaling.kind === 'yarn' ? { ...rope, scaling: { ...rope.scaling, truncate: false } } : rope;
}

/** Of the router and of each expert's three projections. */
function claimBiases(
  reader: FamilyReader,
  layer: number,
  { hidden }: Stem,
  { routing: { experts }, inner }: { readonly routing: Routing; readonly inner: number },
): void {
  const at = `layers.${layer}.moe`;
  const blk = `blk.${layer}`;
  reader.vector(`${at}.router.bias`, `${blk}.ffn_gate_inp.bias`, [experts]);
  for (const part of ['gate', 'up', 'down'] as const) {
    reader.vector(`${at}.${part}.bias`, `${blk}.ffn_${part}_exps.bias`, [experts, part === 'down' ? hidden : inner]);
  }
}
