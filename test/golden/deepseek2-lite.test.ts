/**
 * DeepSeek-V2-Lite projects its queries at once, with no rank in between. Its official fixture is a safetensors file; here it is
 * written as GGUF has it, what keys and values are made with split by head and that of keys transposed, and read like any
 * other file: official logits on the reference and on the CPU.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { meta, type TensorWithData, writeGguf } from '../../src/format/gguf-writer.ts';
import { openModelFile } from '../../src/format/open.ts';
import { memorySource } from '../../src/format/source.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import { backendOf, planFor, runTokens } from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { OfficialTensors } from '../support/official-tensors.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

const HEADS = 4;
const PLAIN = 32;
const ROTATED = 16;
const LATENT = 32;
const LAYERS = 3;

const official = new OfficialTensors('deepseek2-lite');
const matrix = (name: string, from: string): TensorWithData => ({ name, ...official.matrix(from) });
const vector = (name: string, from: string): TensorWithData => ({ name, ...official.vector(from) });

function layer(index: number): TensorWithData[] {
  const from = `model.layers.${index}`;
  const block = `blk.${index}`;
  const { key, value } = official.absorbed(`${from}.self_attn.kv_b_proj.weight`, { heads: HEADS, plainDim: PLAIN });
  const shared: TensorWithData[] = [
    { name: `${block}.attn_k_b.weight`, ...key },
    { name: `${block}.attn_v_b.weight`, ...value },
    vector(`${block}.attn_norm.weight`, `${from}.input_layernorm.weight`),
    vector(`${block}.ffn_norm.weight`, `${from}.post_attention_layernorm.weight`),
    vector(`${block}.attn_kv_a_norm.weight`, `${from}.self_attn.kv_a_layernorm.weight`),
    matrix(`${block}.attn_q.weight`, `${from}.self_attn.q_proj.weight`),
    matrix(`${block}.attn_kv_a_mqa.weight`, `${from}.self_attn.kv_a_proj_with_mqa.weight`),
    matrix(`${block}.attn_output.weight`, `${from}.self_attn.o_proj.weight`),
  ];
  const parts = ['gate', 'up', 'down'];
  if (index === 0) {
    return [
      ...shared,
      ...parts.map((part) => matrix(`${block}.ffn_${part}.weight`, `${from}.mlp.${part}_proj.weight`)),
    ];
  }
  const experts = (part: string) => Array.from({ length: 8 }, (_, e) => `${from}.mlp.experts.${e}.${part}_proj.weight`);
  return [
    ...shared,
    matrix(`${block}.ffn_gate_inp.weight`, `${from}.mlp.gate.weight`),
    ...parts.map((part) => ({ name: `${block}.ffn_${part}_exps.weight`, ...official.stack(experts(part)) })),
    ...parts.map((part) =>
      matrix(`${block}.ffn_${part}_shexp.weight`, `${from}.mlp.shared_experts.${part}_proj.weight`),
    ),
  ];
}

/** As `config.json` says. */
const keys = {
  block_count: meta.u32(LAYERS),
  context_length: meta.u32(512),
  embedding_length: meta.u32(64),
  feed_forward_length: meta.u32(96),
  'attention.head_count': meta.u32(HEADS),
  'attention.head_count_kv': meta.u32(1),
  'attention.layer_norm_rms_epsilon': meta.f32(1e-5),
  'attention.kv_lora_rank': meta.u32(LATENT),
  'attention.key_length': meta.u32(LATENT + ROTATED),
  'attention.value_length': meta.u32(LATENT),
  'attention.key_length_mla': meta.u32(PLAIN + ROTATED),
  'attention.value_length_mla': meta.u32(32),
  'rope.dimension_count': meta.u32(ROTATED),
  'rope.freq_base': meta.f32(10_000),
  leading_dense_block_count: meta.u32(1),
  expert_count: meta.u32(8),
  expert_used_count: meta.u32(2),
  expert_shared_count: meta.u32(2),
  expert_feed_forward_length: meta.u32(32),
};

test('queries without a rank: official logits on the reference and on the CPU', async () => {
  const bytes = writeGguf({
    metadata: {
      'general.architecture': meta.string('deepseek2'),
      ...Object.fromEntries(Object.entries(keys).map(([name, value]) => [`deepseek2.${name}`, value])),
    },
    tensors: [
      matrix('token_embd.weight', 'model.embed_tokens.weight'),
      matrix('output.weight', 'lm_head.weight'),
      vector('output_norm.weight', 'model.norm.weight'),
      ...Array.from({ length: LAYERS }, (_, index) => layer(index)).flat(),
    ],
  });
  const file = await openModelFile({ file: memorySource(bytes), fileName: 'model.gguf' });
  const { spec, weights } = readModel(file);
  assert.equal(spec.layers[0]?.attention.latent?.queryRank, undefined);
  const graph = buildGraph(spec);
  const expected = readSafetensors(familyFile('deepseek2-lite', 'expected.safetensors'));
  const logits = f32Of(expected, 'logits');
  for (const [device, most] of [
    ['reference', 2e-4],
    ['cpu', 2e-5],
  ] as const) {
    const plan = planFor({ spec, graph, weights }, { context: 64, cache: 'f32', device });
    // A latent and the rotated elements beside it, once for all heads.
    assert.equal(plan.bytes.cache, LAYERS * 64 * (LATENT + ROTATED) * 4);
    const executable = await backendOf(plan).prepare({ plan, spec, graph, weights, sources: file.sources });
    const found = await runTokens({ spec, graph, weights, plan, executable }, i32Of(expected, 'tokens'), 0, 'prompt');
    assert.equal(found.length, logits.length);
    const distance = found.reduce((worst, x, i) => Math.max(worst, Math.abs(x - (logits[i] as number))), 0);
    assert.ok(distance <= most, `${device}: logits are off by ${distance}`);
    await executable.dispose();
  }
});
