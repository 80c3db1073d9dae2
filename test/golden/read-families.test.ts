/** Law 6 on families whose files say one thing in several ways, or say a thing twice. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CorruptFileError, Refusal } from '../../src/errors.ts';
import { meta } from '../../src/format/gguf-writer.ts';
import type { MetadataValue, TensorInfo } from '../../src/format/model-file.ts';
import { readModel } from '../../src/model/read-model.ts';
import { altered, type Changes, header, tensorOf } from '../support/headers.ts';

test('ernie4_5-moe: a selection bias of either shape, and experts in every so many layers', async () => {
  const file = await header('ernie4_5-moe');
  const { spec, weights } = readModel(file);
  assert.deepEqual(
    spec.layers.map(({ feedForward }) => feedForward.kind),
    ['dense', 'moe', 'moe'],
  );
  const name = 'blk.1.exp_probs_b.bias';
  const vector = readModel(altered(file, { tensors: { [name]: { ...tensorOf(file, name), shape: [8] } } }));
  for (const read of [weights, vector.weights]) {
    assert.deepEqual(read.get('layers.1.moe.selectionBias')?.shape, [8]);
  }
  const square = { [name]: { ...tensorOf(file, name), shape: [2, 4] } };
  assert.throws(() => readModel(altered(file, { tensors: square })), /exp_probs_b\.bias is \[2, 4\].*\[1, 8\]/);
  const everySecond = { 'ernie4_5-moe.interleave_moe_layer_step': meta.u32(2) };
  assert.throws(() => readModel(altered(file, { metadata: everySecond })), /blk\.2\.ffn_gate\.weight is missing/);
});

test('deepseek2: latent attention is one key head, and what the file says of it twice agrees', async () => {
  const file = await header('deepseek3');
  const { heads, kvHeads, headDim, valueDim, latent, scale } = readModel(file).spec.layers[0].attention;
  assert.deepEqual([heads, kvHeads, headDim, valueDim, scale], [4, 1, 48, 32, 1 / Math.sqrt(48)]);
  assert.deepEqual(latent, { queryRank: 48, plainDim: 32, headValueDim: 32, norm: { epsilon: 1e-6 } });
  const say = (key: string, value: MetadataValue) => () =>
    readModel(altered(file, { metadata: { [`deepseek2.${key}`]: value } }));
  assert.throws(say('attention.head_count_kv', meta.u32(4)), /head_count_kv is 4; expected 1: the one key head/);
  assert.throws(say('attention.key_length', meta.u32(64)), /key_length is 64; expected 48: kv_lora_rank and/);
  assert.throws(say('attention.value_length', meta.u32(48)), /value_length is 48; expected 32: kv_lora_rank/);
  assert.throws(say('attention.key_length_mla', meta.u32(16)), /key_length_mla is 16; expected more than .*16/);
  assert.throws(say('attention.kv_lora_rank', meta.u32(0)), CorruptFileError);
  // From before what keys and values are made with was split by head.
  const tensors: Record<string, TensorInfo | null> = {};
  for (let layer = 0; layer < 3; layer++) {
    const [key, value] = ['k', 'v'].map((part) => tensorOf(file, `blk.${layer}.attn_${part}_b.weight`));
    tensors[key.name] = null;
    tensors[value.name] = null;
    const name = `blk.${layer}.attn_kv_b.weight`;
    tensors[name] = { ...key, name, shape: [256, 32], bytes: key.bytes + value.bytes };
  }
  assert.throws(
    () => readModel(altered(file, { tensors })),
    (error) => error instanceof Refusal && /attn_kv_b\.weight .* convert the model again/.test(error.message),
  );
});

test('deepseek2: with YaRN scores are sharpened in place of longer cosines, if the file says how much', async () => {
  const yarn = {
    'deepseek2.rope.scaling.type': meta.string('yarn'),
    'deepseek2.rope.scaling.factor': meta.f32(40),
    'deepseek2.rope.scaling.original_context_length': meta.u32(4096),
  };
  const file = await header('deepseek2');
  const read = (metadata: Changes['metadata']) => {
    const { scale, rope } = readModel(altered(file, { metadata })).spec.layers[2].attention;
    assert.ok(rope?.scaling.kind === 'yarn');
    return { scale, magnitude: rope.scaling.magnitude };
  };
  // DeepSeek-V2-Lite: a tenth of its mscale_all_dim.
  const said = read({ ...yarn, 'deepseek2.rope.scaling.yarn_log_multiplier': meta.f32(0.0707) });
  assert.ok(Math.abs(said.magnitude - 1) < 1e-12);
  assert.ok(Math.abs(said.scale - (0.0707 * Math.log(40) + 1) ** 2 / Math.sqrt(48)) < 1e-12);
  const unsaid = read(yarn);
  assert.equal(unsaid.scale, 1 / Math.sqrt(48));
  assert.ok(Math.abs(unsaid.magnitude - (0.1 * Math.log(40) + 1)) < 1e-12);
});
