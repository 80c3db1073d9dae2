/**
 * Law 6 on the families whose attention varies from layer to layer: what the file says of windows wins over the family, what
 * it does not say the family knows, and what no fixture proves is refused.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CorruptFileError, Refusal } from '../../src/errors.ts';
import { meta } from '../../src/format/gguf-writer.ts';
import type { ModelFile, TensorInfo } from '../../src/format/model-file.ts';
import { openModelFile } from '../../src/format/open.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import { backendOf, planFor, runTokens } from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { altered, type Changes, header, tensorOf } from '../support/headers.ts';
import { nodeModelSource } from '../support/node-source.ts';

async function specOf(family: string, changes: Changes = {}) {
  return readModel(altered(await header(family), changes)).spec;
}

/** Which layers have a window or a chunk. */
async function limited(family: string, metadata: Changes['metadata'] = {}): Promise<readonly boolean[]> {
  return (await specOf(family, { metadata })).layers.map(({ attention }) => attention.reach !== undefined);
}

const T = true;
const F = false;

test('windows: the family knows the order, a period or a flag for each layer overrules it', async () => {
  assert.deepEqual(await limited('gpt-oss'), [T, F, T, F]);
  assert.deepEqual(await limited('gemma3'), [T, T, T, T, T, F]);
  assert.deepEqual(await limited('gemma4-moe'), [T, T, T, T, T, F]);
  assert.deepEqual(await limited('llama4'), [T, T, T, F]);
  assert.deepEqual(await limited('laguna'), [F, T, T, T, F]);
  const key = 'gpt-oss.attention.sliding_window_pattern';
  assert.deepEqual(await limited('gpt-oss', { [key]: meta.u32(3) }), [T, T, F, T]);
  assert.deepEqual(await limited('gpt-oss', { [key]: meta.array('bool', [F, T, T, F]) }), [F, T, T, F]);
  await assert.rejects(limited('gpt-oss', { [key]: meta.array('bool', [F, T]) }), /an array of 2 .* 4 layers/);
  await assert.rejects(limited('gpt-oss', { [key]: meta.array('u32', Uint32Array.of(1, 0, 1, 0)) }), CorruptFileError);
  await assert.rejects(limited('gpt-oss', { 'gpt-oss.attention.sliding_window': null }), /sliding_window is missing/);
  await assert.rejects(limited('gpt-oss', { 'gpt-oss.attention.sliding_window': meta.u32(0) }), CorruptFileError);
});

test('a rotation belongs to its kind of layer', async () => {
  const ropes = async (family: string) => (await specOf(family)).layers.map(({ attention }) => attention.rope);
  const [gemma, laguna, llama4] = [await ropes('gemma3'), await ropes('laguna'), await ropes('llama4')];
  assert.deepEqual([gemma[0]?.base, gemma[5]?.base], [10_000, 1_000_000]);
  assert.deepEqual([laguna[0]?.dimensions, laguna[1]?.dimensions], [16, 32]);
  assert.deepEqual([laguna[0]?.base, laguna[1]?.base], [500_000, 10_000]);
  assert.ok(llama4[0] !== undefined && llama4[3] === undefined);
  const proportional = await ropes('gemma4-moe');
  assert.deepEqual([proportional[0]?.scaling.kind, proportional[5]?.scaling.kind], ['none', 'factors']);
  // Scaling is of those that see everything alone.
  const scaled = { 'gemma3.rope.scaling.type': meta.string('linear'), 'gemma3.rope.scaling.factor': meta.f32(8) };
  const { layers } = await specOf('gemma3', { metadata: scaled });
  assert.deepEqual(layers[0]?.attention.rope?.scaling, { kind: 'none' });
  assert.deepEqual(layers[5]?.attention.rope?.scaling, { kind: 'linear', factor: 8 });
});

test('gpt-oss: its YaRN does not round its bounds', async () => {
  const { layers } = await specOf('gpt-oss');
  for (const { attention } of layers) {
    assert.ok(attention.rope?.scaling.kind === 'yarn');
    assert.equal(attention.rope.scaling.truncate, false);
  }
});

test('laguna: a gate has a number for each head, or for each element, as the tensor has rows', async () => {
  const file = await header('laguna');
  const tensors: Record<string, TensorInfo> = {};
  for (const { name } of file.tensors.values()) {
    if (name.endsWith('attn_gate.weight')) tensors[name] = { ...tensorOf(file, name), shape: [128, 64] };
  }
  const gates = (changes: Changes) =>
    readModel(altered(file, changes)).spec.layers.map(({ attention }) => attention.gate);
  assert.ok(gates({}).every((gate) => gate?.per === 'head'));
  assert.ok(gates({ tensors }).every((gate) => gate?.per === 'element'));
  const odd = { 'blk.2.attn_gate.weight': { ...tensorOf(file, 'blk.2.attn_gate.weight'), shape: [5, 64] } };
  assert.throws(() => gates({ tensors: odd }), /blk\.2\.attn_gate\.weight is \[5, 64\]/);
  const whole = { 'laguna.attention.sliding_window': null };
  const unread = ['laguna.rope.freq_base_swa', 'laguna.rope.dimension_count_swa'];
  assert.throws(() => gates({ metadata: whole }), Refusal, 'what belongs to windows is not passed over');
  const without = Object.fromEntries([...Object.keys(whole), ...unread].map((key) => [key, null]));
  assert.deepEqual(await limited('laguna', without), [F, F, F, F, F]);
});

test('gemma4: shared keys and values, and embeddings for each layer, are refused by name', async () => {
  for (const key of ['gemma4.attention.shared_kv_layers', 'gemma4.embedding_length_per_layer_input']) {
    await assert.rejects(specOf('gemma4-moe', { metadata: { [key]: meta.u32(2) } }), (error) => {
      assert.ok(error instanceof Refusal);
      assert.ok(error.message.includes(`${key} is 2`), error.message);
      return true;
    });
  }
});

test('llama4: chunks other than the published ones are refused; the model of 128 experts norms no queries', async () => {
  for (const key of ['attention.sliding_window', 'attention.chunk_size', 'attention.sliding_window_pattern']) {
    await assert.rejects(limited('llama4', { [`llama4.${key}`]: meta.u32(5) }), Refusal);
  }
  assert.deepEqual((await specOf('llama4')).layers[0]?.attention.qkNorm, {
    over: 'head',
    epsilon: Math.fround(1e-5),
    unweighted: true,
    afterRope: true,
  });
  const file = await header('llama4');
  const tensors: Record<string, TensorInfo> = {};
  for (const tensor of file.tensors.values()) {
    if (!/ffn_(gate|up|down)_exps|ffn_gate_inp/.test(tensor.name)) continue;
    tensors[tensor.name] = { ...tensor, shape: [128, ...tensor.shape.slice(1)] };
  }
  const { layers } = await specOf('llama4', { metadata: { 'llama4.expert_count': meta.u32(128) }, tensors });
  assert.ok(layers.every(({ attention }) => attention.qkNorm === undefined));
});

test('llama4: every n-th layer has experts, the others are dense', async () => {
  const file = await header('llama4');
  const tensors: Record<string, TensorInfo | null> = {};
  for (const tensor of file.tensors.values()) {
    if (!/^blk\.[02]\..*(exps|inp|shexp)\.weight$/.test(tensor.name)) continue;
    tensors[tensor.name] = null;
    const name = tensor.name.replace('_shexp', '');
    const shape = name.includes('ffn_down') ? [64, 96] : [96, 64];
    if (name !== tensor.name) tensors[name] = { ...tensor, name, shape };
  }
  const metadata = { 'llama4.interleave_moe_layer_step': meta.u32(2) };
  const { layers } = await specOf('llama4', { metadata, tensors });
  assert.deepEqual(
    layers.map(({ feedForward }) => feedForward.kind),
    ['dense', 'moe', 'dense', 'moe'],
  );
});

test('gemma4: gate and up of experts in one tensor are halves of each expert’s', async () => {
  const { weights } = readModel(await header('gemma4-moe'));
  const [gate, up] = ['gate', 'up'].map((part) => weights.get(`layers.0.moe.${part}`));
  assert.ok(gate !== undefined && up !== undefined);
  assert.deepEqual(
    [gate.shape, up.shape],
    [
      [8, 32, 64],
      [8, 32, 64],
    ],
  );
  const half = 32 * 64 * 2;
  gate.parts.forEach((part, expert) => {
    const other = up.parts[expert];
    assert.deepEqual([part.bytes, other?.bytes, (other?.offset ?? 0) - part.offset], [half, half, half]);
    assert.equal(part.offset - (gate.parts[0]?.offset ?? 0), 2 * half * expert);
  });
});

test('gemma4: a layer without a projection for values takes the keys’, before their norm and rotation', async () => {
  const tokens = Int32Array.from({ length: 24 }, (_, i) => (i * 37 + 11) % 500);
  const logitsOf = async (change: (file: ModelFile) => Changes) => {
    const file = await openModelFile(await nodeModelSource(familyFile('gemma4-moe', 'model.gguf')));
    const { spec, weights } = readModel(altered(file, change(file)));
    const graph = buildGraph(spec);
    const plan = planFor({ spec, graph, weights }, { context: 64, cache: 'f32', device: 'reference' });
    const executable = await backendOf(plan).prepare({ plan, spec, graph, weights, sources: file.sources });
    const logits = await runTokens({ spec, graph, weights, plan, executable }, tokens, 0, 'prompt');
    await executable.dispose();
    await file.close();
    return logits;
  };
  const value = 'blk.5.attn_v.weight';
  const left = await logitsOf(() => ({ tensors: { [value]: null } }));
  // The keys' weights, once more under the values' name.
  const twice = await logitsOf((file) => ({
    tensors: { [value]: { ...tensorOf(file, 'blk.5.attn_k.weight'), name: value } },
  }));
  assert.deepEqual(left, twice);
  assert.notDeepEqual(left, await logitsOf(() => ({})));
});
