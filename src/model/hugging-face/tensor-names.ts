/**
 * Tensors of a Hugging Face style model under GGUF's names. A module (`model.layers.3.self_attn.q_proj`) has one or more
 * tensors (`.weight`, `.bias`, scales); GGUF's name of the module, `blk.3.attn_q`, gets the same endings.
 */

import type { Dialect } from './dialect.ts';
import type { Fused } from './fused.ts';

/** N is the layer's number, E the expert's. Of two modules of one meaning the first is the one that messages name. */
const modules: Readonly<Record<string, string>> = {
  'model.embed_tokens': 'token_embd',
  'model.norm': 'output_norm',
  lm_head: 'output',
  'model.layers.N.input_layernorm': 'blk.N.attn_norm',
  'model.layers.N.post_attention_layernorm': 'blk.N.ffn_norm',
  'model.layers.N.self_attn.q_proj': 'blk.N.attn_q',
  'model.layers.N.self_attn.k_proj': 'blk.N.attn_k',
  'model.layers.N.self_attn.v_proj': 'blk.N.attn_v',
  'model.layers.N.self_attn.o_proj': 'blk.N.attn_output',
  'model.layers.N.self_attn.q_norm': 'blk.N.attn_q_norm',
  'model.layers.N.self_attn.k_norm': 'blk.N.attn_k_norm',
  'model.layers.N.mlp.gate_proj': 'blk.N.ffn_gate',
  'model.layers.N.mlp.up_proj': 'blk.N.ffn_up',
  'model.layers.N.mlp.down_proj': 'blk.N.ffn_down',
  'model.layers.N.mlp.gate': 'blk.N.ffn_gate_inp',
  'model.layers.N.mlp.experts.E.gate_proj': 'blk.N.ffn_gate.E',
  'model.layers.N.mlp.experts.E.up_proj': 'blk.N.ffn_up.E',
  'model.layers.N.mlp.experts.E.down_proj': 'blk.N.ffn_down.E',
  'model.layers.N.mlp.shared_experts.gate_proj': 'blk.N.ffn_gate_shexp',
  'model.layers.N.mlp.shared_experts.up_proj': 'blk.N.ffn_up_shexp',
  'model.layers.N.mlp.shared_experts.down_proj': 'blk.N.ffn_down_shexp',
  // Whole tensors whose endings are their own.
  'model.layers.N.mlp.gate.e_score_correction_bias': 'blk.N.exp_probs_b.bias',
  'model.layers.N.mlp.experts.down_proj': 'blk.N.ffn_down_exps.weight',
  'model.layers.N.mlp.experts.gate_proj': 'blk.N.ffn_gate_exps.weight',
  'model.layers.N.mlp.experts.up_proj': 'blk.N.ffn_up_exps.weight',
};

/** Experts' gate and up in one tensor [experts, 2 · inner, hidden], an expert's gate before its up. */
const fused: Readonly<Record<string, Fused>> = {
  'model.layers.N.mlp.experts.gate_up_proj': {
    parts: ['blk.N.ffn_gate_exps.weight', 'blk.N.ffn_up_exps.weight'],
    rows: 'halves',
  },
};

export interface TensorNames {
  /** How a tensor of that name holds several of GGUF's, whose names are its parts; undefined where it does not. */
  fused(name: string): Fused | undefined;
  /** GGUF's name; undefined for one that nobody knows. */
  gguf(name: string): string | undefined;
  /** What such a model calls the tensor of a GGUF name, for one that is not there. */
  own(gguf: string): string;
}

/** @param own a family's own, before those of all families */
export function tensorNames({
  tensors: more = {},
  fused: own = {},
}: Pick<Dialect, 'tensors' | 'fused'> = {}): TensorNames {
  const layouts = new Map(Object.entries({ ...fused, ...own }));
  const table = new Map(Object.entries({ ...modules, ...more }));
  const inverse = new Map<string, string>();
  for (const [own, gguf] of [...Object.entries(more), ...Object.entries(modules)]) {
    if (table.get(own) === gguf && !inverse.has(gguf)) inverse.set(gguf, own);
  }
  return {
    gguf: (name) => translated(name, table),
    own: (name) => translated(name, inverse) ?? name,
    fused: (name) => {
      const { pattern, numbers } = patternOf(name);
      const found = layouts.get(pattern);
      return found && { ...found, parts: found.parts.map((part) => filled(part, numbers)) };
    },
  };
}

/** The numbers in a name, layer first. */
function patternOf(name: string): { readonly pattern: string; readonly numbers: readonly string[] } {
  const numbers: string[] = [];
  const pattern = name.replace(/(?<=\.)\d+(?=\.|$)/g, (number) => {
    numbers.push(number);
    return numbers.length === 1 ? 'N' : 'E';
  });
  return { pattern, numbers };
}

function translated(name: string, table: ReadonlyMap<string, string>): string | undefined {
  const { pattern, numbers } = patternOf(name);
  const whole = table.get(pattern);
  if (whole !== undefined) return filled(whole, numbers);
  const end = pattern.lastIndexOf('.');
  const module = end < 0 ? undefined : table.get(pattern.slice(0, end));
  return module === undefined ? undefined : `${filled(module, numbers)}${pattern.slice(end)}`;
}

function filled(text: string, [layer = '', expert = '']: readonly string[]): string {
  return text.replace(/\bN\b/, layer).replace(/\bE\b/, expert);
}
