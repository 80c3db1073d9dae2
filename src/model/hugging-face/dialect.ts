/**
 * How a family's models are written down in a Hugging Face style folder: the row that a family file states beside its
 * reading of GGUF's names. Keys and tensors which all families call alike stand in `config-keys.ts` and
 * `tensor-names.ts`; here is what is a family's own.
 */

import type { JsonValue } from '../../format/json.ts';
import type { Fused } from './fused.ts';

/** What a key of `config.json` must say, because nothing else is supported. Absent or null, it is the official default: this. */
export interface Fixed {
  readonly fits: (value: JsonValue) => boolean;
  /** For errors. */
  readonly expected: string;
}

export interface Dialect {
  /** `model_type` of `config.json`. */
  readonly modelType: string;
  readonly fixed?: Readonly<Record<string, Fixed>>;
  /**
   * GGUF's keys and the names in `config.json` that mean the same, where they are the family's own; beside those of
   * `config-keys.ts`, and before them. No name: the file says nothing of it.
   */
  readonly keys?: Readonly<Record<string, readonly string[]>>;
  /** Keys that change nothing in this family, each with the reason. */
  readonly ignored?: Readonly<Record<string, string>>;
  /** Keys that must be there although GGUF may leave theirs out: GGUF defines what an absent one means, `config.json` does not. */
  readonly needed?: readonly string[];
  /**
   * Names of modules (`model.layers.N.self_attn.q_proj`; N is the layer, E the expert) or of whole tensors, and GGUF's for
   * them; beside those of `tensor-names.ts`, and before them.
   */
  readonly tensors?: Readonly<Record<string, string>>;
  /** Tensors (`model.layers.N.mlp.experts.gate_up_proj`) that hold several of GGUF's; beside those of `tensor-names.ts`. */
  readonly fused?: Readonly<Record<string, Fused>>;
}

/** The one value. */
export function only(value: JsonValue): Fixed {
  const expected = JSON.stringify(value);
  return { fits: (found) => JSON.stringify(found) === expected, expected };
}

/** A list of nothing but the one value, as `layer_types` is. */
export function each(value: JsonValue): Fixed {
  const { fits, expected } = only(value);
  return { fits: (found) => Array.isArray(found) && found.every(fits), expected: `a list of nothing but ${expected}` };
}

/** What most families fix. */
export const silu: Readonly<Record<string, Fixed>> = { hidden_act: only('silu') };

/** Attention over all positions, in every layer: what the Qwen families say in several keys. */
export const fullAttention: Readonly<Record<string, Fixed>> = {
  use_sliding_window: only(false),
  layer_types: each('full_attention'),
};
export const unusedWindow: Readonly<Record<string, string>> = {
  sliding_window: 'no layer has a sliding window (use_sliding_window)',
  max_window_layers: 'no layer has a sliding window (use_sliding_window)',
};

/** Experts in every layer. */
export const sparseEverywhere: Readonly<Record<string, Fixed>> = {
  decoder_sparse_step: only(1),
  mlp_only_layers: only([]),
};
