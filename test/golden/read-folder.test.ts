/**
 * Law 6 on safetensors folders: the ways in which `config.json` and tensors of one meaning differ are read alike, what is
 * left out is named, and what cannot be meant is told by its own name. Each test alters what a fixture says.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { UsageError } from '../../src/errors.ts';
import type { JsonValue } from '../../src/format/json.ts';
import type { ModelFile, TensorInfo } from '../../src/format/model-file.ts';
import { openModelFile } from '../../src/format/open.ts';
import { readModel } from '../../src/model/read-model.ts';
import { familiesInFolders, familyFile } from '../support/families.ts';
import { altered, type Changes, corrupt, refused } from '../support/folder.ts';
import { nodeModelSource } from '../support/node-source.ts';

async function opened(family: string, file = 'model.safetensors'): Promise<ModelFile> {
  const model = await openModelFile(await nodeModelSource(familyFile(family, file)));
  await model.close();
  return model;
}

test('both containers of a family are one spec, but for what each stores in its own way', async () => {
  for (const family of familiesInFolders) {
    const [gguf, folder] = [await opened(family, 'model.gguf'), await opened(family)].map((file) => readModel(file));
    // GGUF stores f32 numbers, and llama's query and key rows so that pairs are adjacent; Llama 3.1's scaling as a tensor.
    const plain = (spec: unknown) =>
      JSON.parse(JSON.stringify(spec), (key, value) => {
        if (key === 'pairing' || key === 'scaling') return undefined;
        return typeof value === 'number' ? Math.fround(value) : value;
      });
    assert.deepEqual(plain(folder?.spec), plain(gguf?.spec), family);
    const names = (weights: ReadonlyMap<string, unknown> | undefined) =>
      [...(weights?.keys() ?? [])].filter((name) => name !== 'ropeFactors').sort();
    assert.deepEqual(names(folder?.weights), names(gguf?.weights), family);
    const pairing = folder?.spec.layers[0]?.attention.rope?.pairing;
    // Ernie's is so in either container.
    assert.equal(pairing, family === 'ernie4_5-moe' ? 'adjacent' : 'half', family);
  }
});

test('the number of experts is read under each of its names, and both at once only if they agree', async () => {
  const file = await opened('qwen3moe');
  const { spec } = readModel(file);
  const renamed = { num_experts: undefined, num_local_experts: 8 };
  assert.deepEqual(readModel(altered(file, { config: renamed })).spec, spec);
  assert.deepEqual(readModel(altered(file, { config: { num_local_experts: 8 } })).spec, spec);
  assert.throws(
    () => readModel(altered(file, { config: { num_local_experts: 4 } })),
    corrupt(/num_local_experts of config\.json is 4; expected num_experts, which means the same and is 8/),
  );
  assert.throws(
    () => readModel(altered(file, { config: { num_experts: undefined } })),
    corrupt(/num_experts or .* is missing/),
  );
});

test('both spellings of the rotation mean the same, and not both at once', async () => {
  const config = { rope_parameters: undefined, rope_theta: 500_000 };
  const scalings: readonly (readonly [string, JsonValue])[] = [
    [
      'llama3-rope',
      { rope_type: 'llama3', factor: 8, high_freq_factor: 4, low_freq_factor: 1, original_max_position_embeddings: 64 },
    ],
    ['llama-yarn', { type: 'yarn', factor: 4, original_max_position_embeddings: 16 }],
  ];
  for (const [family, rope_scaling] of scalings) {
    const file = await opened(family);
    const theta = family === 'llama-yarn' ? 10_000 : 500_000;
    const old = { ...config, rope_theta: theta, rope_scaling };
    assert.deepEqual(readModel(altered(file, { config: old })).spec, readModel(file).spec);
    assert.throws(
      () => readModel(altered(file, { config: { rope_scaling } })),
      corrupt(/both rope_parameters and rope_scaling/),
    );
  }
  const glm = await opened('glm4moe');
  const old = { rope_parameters: undefined, rope_theta: 10_000, partial_rotary_factor: 0.5, rope_scaling: null };
  assert.deepEqual(readModel(altered(glm, { config: old })).spec, readModel(glm).spec);
  const rope = (rope_parameters: JsonValue) => () => readModel(altered(glm, { config: { rope_parameters } }));
  assert.throws(rope({ rope_theta: 1e4, rope_type: 'default' }), corrupt(/partial_rotary_factor.* is missing/));
  assert.throws(
    rope({ rope_theta: 1e4, rope_type: 'dynamic', partial_rotary_factor: 0.5 }),
    refused(/rope_type is "dynamic"/),
  );
  assert.throws(
    rope({ rope_theta: 1e4, partial_rotary_factor: 0.3 }),
    corrupt(/partial_rotary_factor is 9; expected an even/),
  );
  assert.throws(
    rope({ rope_theta: 1e4, partial_rotary_factor: 0.5, wave: 1 }),
    refused(/does not know rope_parameters\.wave/),
  );
  assert.throws(rope([1, 2]), corrupt(/rope_parameters of config\.json is \[1,2\]; expected an object/));
});

test('experts fused into one tensor are those stored one by one', async () => {
  const file = await opened('qwen3moe');
  const whole = readModel(file);
  const tensors: Record<string, TensorInfo | undefined> = {};
  for (const { name } of file.tensors.values()) if (name.includes('.experts.')) tensors[name] = undefined;
  for (const layer of [0, 1, 2]) {
    const at = `model.layers.${layer}.mlp.experts`;
    const base = { format: 'BF16', source: 0, offset: 1000 * (layer + 1) };
    const fused = { ...base, name: `${at}.gate_up_proj`, shape: [8, 64, 64], bytes: 8 * 64 * 64 * 2 };
    tensors[fused.name] = fused;
    tensors[`${at}.down_proj`] = { ...base, name: `${at}.down_proj`, shape: [8, 64, 32], bytes: 8 * 64 * 32 * 2 };
  }
  const { spec, weights } = readModel(altered(file, { tensors }));
  assert.deepEqual(spec, whole.spec);
  const part = (name: string, expert: number) => weights.get(`layers.1.moe.${name}`)?.parts[expert];
  assert.deepEqual([part('gate', 3)?.offset, part('gate', 3)?.bytes], [2000 + 6 * 32 * 64 * 2, 32 * 64 * 2]);
  assert.equal(part('up', 3)?.offset, 2000 + 7 * 32 * 64 * 2);
  for (const [name, weight] of whole.weights) {
    assert.deepEqual([weights.get(name)?.shape, weights.get(name)?.bytes], [weight.shape, weight.bytes], name);
  }
  const odd = { ...(tensors['model.layers.0.mlp.experts.gate_up_proj'] as TensorInfo), shape: [8, 63, 64] };
  assert.throws(
    () => readModel(altered(file, { tensors: { ...tensors, [odd.name]: odd } })),
    corrupt(/gate_up_proj is \[8, 63, 64\]/),
  );
});

test('a head that is the embedding is said by config.json, and one that is there all the same is named', async () => {
  const file = await opened('llama');
  assert.equal(readModel(file).spec.head.tied, false);
  const tied = readModel(altered(file, { config: { tie_word_embeddings: true } }));
  assert.equal(tied.spec.head.tied, true);
  assert.equal(tied.weights.has('head'), false);
  assert.ok(
    tied.ignored.some(({ name, reason }) => name === 'lm_head.weight' && reason.includes('tie_word_embeddings')),
  );
  const gone = { 'lm_head.weight': undefined };
  assert.throws(() => readModel(altered(file, { tensors: gone })), corrupt(/the tensor lm_head\.weight is missing/));
  // Where nothing is said, what is there decides.
  const unsaid = { tie_word_embeddings: undefined };
  assert.equal(readModel(altered(file, { config: unsaid, tensors: gone })).spec.head.tied, true);
});

test('keys that nobody knows are refused by name and can be ignored by name; keys that are used cannot', async () => {
  const file = await opened('qwen2moe');
  const odd = altered(file, { config: { new_trick: true, rope_parameters: { rope_theta: 10_000, twist: 2 } } });
  assert.throws(() => readModel(odd), refused(/qwen2moe family does not know rope_parameters\.twist, new_trick/));
  const { ignored } = readModel(odd, { ignoreKeys: ['new_trick', 'rope_parameters.twist'] });
  const byRequest = ignored.filter(({ reason }) => reason.includes('by request'));
  assert.deepEqual(
    byRequest.map(({ name }) => name),
    ['rope_parameters.twist', 'new_trick'],
  );
  assert.throws(
    () => readModel(file, { ignoreKeys: ['hidden_size'] }),
    (error) => error instanceof UsageError,
  );
  const named = new Set(readModel(file).ignored.map(({ name }) => name));
  for (const name of ['initializer_range', 'dtype', 'max_window_layers', 'intermediate_size'])
    assert.ok(named.has(name), name);
});

test('tensors that nobody knows are refused by their own name', async () => {
  const file = await opened('llama');
  const tensor = file.tensors.get('model.norm.weight') as TensorInfo;
  const extra = { ...tensor, name: 'model.layers.1.self_attn.sinks' };
  const odd = altered(file, { tensors: { [extra.name]: extra } });
  assert.throws(() => readModel(odd), refused(/does not know model\.layers\.1\.self_attn\.sinks/));
  assert.ok(readModel(odd, { ignoreKeys: [extra.name] }).ignored.some(({ name }) => name === extra.name));
  const beyond = { ...tensor, name: 'model.layers.3.input_layernorm.weight' };
  assert.throws(
    () => readModel(altered(file, { tensors: { [beyond.name]: beyond } })),
    corrupt(/num_hidden_layers is 3; expected the 4 layers whose tensors \(model\.layers\.N\.…\)/),
  );
});

test('values that mean another model are refused with what is supported', async () => {
  const cases: readonly (readonly [family: string, config: Changes<JsonValue>, mention: RegExp])[] = [
    ['llama', { hidden_act: 'gelu' }, /hidden_act is "gelu".*supported is "silu"/],
    ['llama', { mlp_bias: true }, /mlp_bias is true/],
    ['mixtral', { sliding_window: 4096 }, /sliding_window is 4096.*supported is null/],
    ['qwen2', { use_sliding_window: true }, /use_sliding_window is true/],
    ['qwen2', { layer_types: ['full_attention', 'sliding_attention', 'full_attention'] }, /layer_types is/],
    ['qwen3moe', { decoder_sparse_step: 2 }, /decoder_sparse_step is 2/],
    ['qwen3moe', { mlp_only_layers: [1] }, /mlp_only_layers is \[1\]/],
    ['qwen3', { attention_bias: true }, /attention_bias is true/],
    ['olmoe', { clip_qkv: 8 }, /clip_qkv is 8/],
    ['qwen2moe', { qkv_bias: false }, /qkv_bias is false/],
    ['llama', { model_type: 'llama9' }, /model_type "llama9".*supported are llama, mixtral/],
  ];
  for (const [family, config, mention] of cases) {
    const file = altered(await opened(family), { config });
    assert.throws(() => readModel(file), refused(mention), JSON.stringify(config));
  }
});

test('hostile values of config.json are told by name before anything is sized by them', async () => {
  const cases: readonly (readonly [family: string, config: Changes<JsonValue>, mention: RegExp])[] = [
    ['llama', { model_type: 7 }, /model_type of config\.json is of type number/],
    ['llama', { model_type: undefined }, /model_type of config\.json is missing/],
    ['llama', { num_hidden_layers: 2 ** 40 }, /num_hidden_layers is 1099511627776; expected the 3 layers/],
    ['llama', { num_hidden_layers: -1 }, /num_hidden_layers is -1/],
    ['llama', { num_hidden_layers: 2.5 }, /num_hidden_layers is 2\.5/],
    ['llama', { num_hidden_layers: '3' }, /num_hidden_layers is "3"/],
    ['llama', { num_hidden_layers: undefined }, /num_hidden_layers is missing/],
    ['llama', { num_hidden_layers: null }, /num_hidden_layers is missing/],
    [
      'llama',
      { num_hidden_layers: { a: 3 } },
      /num_hidden_layers of config\.json is \{"a":3\}; expected a plain value/,
    ],
    ['llama', { num_hidden_layers: [3, 'x'] }, /num_hidden_layers of config\.json is \[3,"x"\]/],
    ['llama', { hidden_size: 0 }, /hidden_size is 0/],
    ['llama', { hidden_size: 1e300 }, /hidden_size is 1e\+300/],
    ['llama', { hidden_size: 63 }, /embed_tokens\.weight is \[512, 64\]; config\.json says \[512, 63\]/],
    ['llama', { vocab_size: 513 }, /vocab_size is 513; expected the 512 rows of model\.embed_tokens\.weight/],
    ['llama', { head_dim: true }, /head_dim is true/],
    ['llama', { num_key_value_heads: 3 }, /num_key_value_heads is 3; expected a divisor of num_attention_heads/],
    ['llama', { rms_norm_eps: 0 }, /rms_norm_eps is 0/],
    ['llama', { rms_norm_eps: 'NaN' }, /rms_norm_eps is "NaN"/],
    [
      'llama',
      { attention_bias: true },
      /attention_bias is true; expected false, since the tensor .*q_proj\.bias is not there/,
    ],
    ['qwen3', { head_dim: undefined }, /head_dim of config\.json is missing/],
    ['glm4moe', { use_qk_norm: false }, /use_qk_norm is false; expected true/],
    ['glm4moe', { num_nextn_predict_layers: 65 }, /num_nextn_predict_layers is 65/],
    ['glm4moe', { n_routed_experts: 2 ** 26 }, /mlp\.gate\.weight is \[8, 64\]/],
    ['qwen3moe', { num_experts: 4 }, /mlp\.gate\.weight is \[8, 64\]; config\.json says \[4, 64\]/],
    ['qwen3moe', { num_experts_per_tok: 9 }, /num_experts_per_tok is 9; expected a whole number from 1 to 8/],
    ['qwen3moe', { moe_intermediate_size: 16 }, /experts\.0\.gate_proj\.weight is \[32, 64\]/],
  ];
  for (const [family, config, mention] of cases) {
    const file = altered(await opened(family), { config });
    assert.throws(() => readModel(file), corrupt(mention), JSON.stringify(config));
  }
});

test('tensors without a config.json say nothing of their model', async () => {
  const file = await opened('llama');
  assert.throws(() => readModel({ ...file, folder: undefined }), refused(/no config\.json beside it/));
  assert.throws(() => readModel({ ...file, folder: { name: 'a folder' } }), refused(/no config\.json beside it/));
});
