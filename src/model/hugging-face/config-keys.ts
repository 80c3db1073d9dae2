/**
 * `config.json` under GGUF's names for its keys: which of its keys means what, which change nothing, and what is left. No
 * value changes; what a family means by a key is said by the family.
 */

import { Refusal } from '../../errors.ts';
import { type JsonObject, showJson } from '../../format/json.ts';
import { ConfigKeys, type NamedKeys } from './config-reader.ts';
import type { Dialect } from './dialect.ts';
import { type Quantisation, readQuantisation } from './quantisation.ts';
import { addRope } from './rope-keys.ts';

/** GGUF's key and the names that writers of `config.json` have for it, all of one meaning. */
const names: Readonly<Record<string, readonly string[]>> = {
  embedding_length: ['hidden_size'],
  block_count: ['num_hidden_layers'],
  context_length: ['max_position_embeddings'],
  vocab_size: ['vocab_size'],
  feed_forward_length: ['intermediate_size'],
  'attention.head_count': ['num_attention_heads'],
  'attention.head_count_kv': ['num_key_value_heads'],
  'attention.key_length': ['head_dim'],
  'attention.value_length': ['head_dim'],
  'attention.layer_norm_rms_epsilon': ['rms_norm_eps'],
  expert_count: ['num_experts', 'num_local_experts', 'n_routed_experts'],
  expert_used_count: ['num_experts_per_tok'],
  expert_feed_forward_length: ['moe_intermediate_size'],
  expert_shared_count: ['n_shared_experts'],
  expert_weights_norm: ['norm_topk_prob'],
  expert_weights_scale: ['routed_scaling_factor'],
  expert_group_count: ['n_group'],
  expert_group_used_count: ['topk_group'],
  leading_dense_block_count: ['first_k_dense_replace'],
  nextn_predict_layers: ['num_nextn_predict_layers'],
};

/** Keys that GGUF has no name for, since its tensors or its families say as much. `FamilyReader.configFlag` reads them. */
const ownFlags = ['tie_word_embeddings', 'attention_bias', 'use_qk_norm'] as const;

const TRAINING = 'concerns training';
const SOFTWARE = 'concerns the software that wrote the model';
const TOKENS = 'read with the tokenizer';

/** Keys that say nothing about the forward pass. */
const bookkeeping: Readonly<Record<string, string>> = {
  architectures: 'the same as model_type in other words',
  model_type: 'names the family',
  attention_dropout: TRAINING,
  hidden_dropout: TRAINING,
  initializer_range: TRAINING,
  output_router_logits: TRAINING,
  pretraining_tp: TRAINING,
  router_aux_loss_coef: TRAINING,
  router_jitter_noise: TRAINING,
  _name_or_path: SOFTWARE,
  auto_map: SOFTWARE,
  dtype: SOFTWARE,
  torch_dtype: SOFTWARE,
  transformers_version: SOFTWARE,
  use_cache: SOFTWARE,
  bos_token_id: TOKENS,
  eos_token_id: TOKENS,
  pad_token_id: TOKENS,
};

/**
 * @param where how errors call the model
 * @throws CorruptFileError `corrupt_file` naming a key whose value cannot be meant; Refusal `refused` for a value that is
 * not supported
 */
export function nameKeys(
  config: JsonObject,
  architecture: string,
  dialect: Dialect,
  where: string,
): NamedKeys & { readonly quantisation: Quantisation | undefined } {
  const keys = new ConfigKeys(config, architecture, where);
  for (const name of dialect.needed ?? []) {
    if (keys.value(name) === undefined)
      throw keys.corrupt(name, 'missing', 'a value; the family does not say what its absence means');
  }
  for (const [key, spelled] of Object.entries({ ...names, ...dialect.keys })) keys.add(key, spelled);
  for (const name of ownFlags.filter((each) => dialect.fixed?.[each] === undefined)) keys.add(`config.${name}`, [name]);
  countLayersAhead(keys);
  addRope(keys);
  const quantisation = readQuantisation(keys);
  for (const [name, fixed] of Object.entries(dialect.fixed ?? {})) {
    const found = keys.take(name);
    if (found === undefined || fixed.fits(found)) continue;
    throw new Refusal(
      `${where}: ${name} is ${showJson(found)}, which is not supported for the ${architecture} family; supported is ${fixed.expected}`,
      { data: { key: name, found } },
    );
  }
  for (const [name, reason] of Object.entries({ ...bookkeeping, ...dialect.ignored })) keys.ignore(name, reason);
  return { ...keys.finish(), quantisation };
}

/** GGUF counts the layers that predict further ahead among the layers; `config.json` does not. */
function countLayersAhead(keys: ConfigKeys): void {
  const [layers, ahead] = [keys.value('num_hidden_layers'), keys.value('num_nextn_predict_layers')];
  if (typeof layers === 'number' && typeof ahead === 'number')
    keys.set('block_count', layers + ahead, 'num_hidden_layers');
}
