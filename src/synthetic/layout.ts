/** What a shape's GGUF file holds: its metadata, and its tensors in the formats that llama.cpp's Q4_K_M gives them. */

import { type MetadataEntries, meta, type TensorHead } from '../format/gguf-writer.ts';
import type { Shape } from './shapes.ts';
import { vocabularyMetadata } from './vocabulary.ts';

export interface SyntheticTensor extends TensorHead {
  /**
   * `weights`: about ±1/√columns. `norm`: about 1. `embedding`: about ±1, as large as what a layer adds to it, so that
   * tokens stay apart and each is routed its own way.
   */
  readonly content: 'weights' | 'norm' | 'embedding';
}

/** `general.file_type` of Q4_K_M. */
const Q4_K_M = 15;

export function metadataOf(name: string, shape: Shape): MetadataEntries {
  return {
    'general.architecture': meta.string('qwen3moe'),
    'general.name': meta.string(`${name}, random weights`),
    'qwen3moe.block_count': meta.u32(shape.layers),
    'qwen3moe.context_length': meta.u32(shape.context),
    'qwen3moe.embedding_length': meta.u32(shape.hidden),
    'qwen3moe.feed_forward_length': meta.u32(shape.inner),
    'qwen3moe.attention.head_count': meta.u32(shape.heads),
    'qwen3moe.attention.head_count_kv': meta.u32(shape.kvHeads),
    'qwen3moe.attention.key_length': meta.u32(shape.headDim),
    'qwen3moe.attention.value_length': meta.u32(shape.headDim),
    'qwen3moe.attention.layer_norm_rms_epsilon': meta.f32(shape.epsilon),
    'qwen3moe.rope.freq_base': meta.f32(shape.ropeBase),
    'qwen3moe.expert_count': meta.u32(shape.experts),
    'qwen3moe.expert_used_count': meta.u32(shape.used),
    'qwen3moe.expert_feed_forward_length': meta.u32(shape.expertInner),
    ...vocabularyMetadata(shape.vocabulary, shape.firstSpecial),
    'general.quantization_version': meta.u32(2),
    'general.file_type': meta.u32(Q4_K_M),
  };
}

export function tensorsOf(shape: Shape): SyntheticTensor[] {
  const { hidden, heads, kvHeads, headDim, experts, expertInner, vocabulary } = shape;
  const tensors: SyntheticTensor[] = [
    { name: 'token_embd.weight', format: 'Q4_K', shape: [vocabulary, hidden], content: 'embedding' },
    weights('output', 'Q6_K', [vocabulary, hidden]),
    norm('output_norm', hidden),
  ];
  for (let layer = 0; layer < shape.layers; layer++) {
    const at = (name: string) => `blk.${layer}.${name}`;
    const careful = hasMoreBits(layer, shape.layers) ? 'Q6_K' : 'Q4_K';
    tensors.push(
      norm(at('attn_norm'), hidden),
      weights(at('attn_q'), 'Q4_K', [heads * headDim, hidden]),
      weights(at('attn_k'), 'Q4_K', [kvHeads * headDim, hidden]),
      weights(at('attn_v'), careful, [kvHeads * headDim, hidden]),
      norm(at('attn_q_norm'), headDim),
      norm(at('attn_k_norm'), headDim),
      weights(at('attn_output'), 'Q4_K', [hidden, heads * headDim]),
      norm(at('ffn_norm'), hidden),
      weights(at('ffn_gate_inp'), 'F32', [experts, hidden]),
      weights(at('ffn_gate_exps'), 'Q4_K', [experts, expertInner, hidden]),
      weights(at('ffn_up_exps'), 'Q4_K', [experts, expertInner, hidden]),
      weights(at('ffn_down_exps'), careful, [experts, hidden, expertInner]),
    );
  }
  return tensors;
}

/** The layers whose value and down projections Q4_K_M keeps in Q6_K: the first and last eighth, and every third between. */
export function hasMoreBits(layer: number, layers: number): boolean {
  const eighth = Math.floor(layers / 8);
  return layer < eighth || layer >= Math.floor((7 * layers) / 8) || (layer - eighth) % 3 === 2;
}

function weights(name: string, format: string, shape: readonly number[]): SyntheticTensor {
  return { name: `${name}.weight`, format, shape, content: 'weights' };
}

function norm(name: string, width: number): SyntheticTensor {
  return { name: `${name}.weight`, format: 'F32', shape: [width], content: 'norm' };
}
