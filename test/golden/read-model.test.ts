/**
 * Law 6 on sound files: the ways in which files of one meaning differ are read alike, and what is left out is named.
 * Each test alters what a fixture's header says and leaves its bytes alone.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CorruptFileError, Refusal, UsageError } from '../../src/errors.ts';
import { meta } from '../../src/format/gguf-writer.ts';
import type { MetadataValue, TensorInfo } from '../../src/format/model-file.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { families } from '../../src/model/families/index.ts';
import { readModel } from '../../src/model/read-model.ts';
import type { RopeSpec } from '../../src/model/spec.ts';
import { altered, type Changes, header, tensorOf } from '../support/headers.ts';
import { metadataAhead, tensorsAhead } from '../support/layer-ahead.ts';

async function ropeOf(family: string, metadata: Changes['metadata']): Promise<RopeSpec | undefined> {
  return readModel(altered(await header(family), { metadata })).spec.layers[0].attention.rope;
}

test('a spec loses nothing as JSON, and the table names each family once', async () => {
  const { spec } = readModel(await header('glm4moe'));
  assert.deepEqual(buildGraph(JSON.parse(JSON.stringify(spec))).widths, buildGraph(spec).widths);
  assert.equal(JSON.stringify(buildGraph(JSON.parse(JSON.stringify(spec)))), JSON.stringify(buildGraph(spec)));
  const moe = spec.layers[1].feedForward;
  assert.ok(moe.kind === 'moe');
  assert.deepEqual(moe.moe.router, {
    gating: 'sigmoid',
    selectionBias: true,
    groups: undefined,
    normalise: true,
    scale: 1.5,
  });
  assert.deepEqual(moe.moe.shared, { inner: 32, gated: false });
  assert.equal(spec.layers[0].feedForward.kind, 'dense');
  const names = families.map(({ architecture }) => architecture);
  assert.equal(new Set(names).size, names.length);
});

test('experts stored one tensor each are the same weight as stacked ones', async () => {
  const file = await header('mixtral');
  const tensors: Record<string, TensorInfo | null> = {};
  for (const tensor of file.tensors.values()) {
    const [, stem] = /^(.*)_exps\.weight$/.exec(tensor.name) ?? [];
    if (stem === undefined) continue;
    tensors[tensor.name] = null;
    const bytes = tensor.bytes / tensor.shape[0];
    for (let expert = 0; expert < tensor.shape[0]; expert++) {
      const name = `${stem}.${expert}.weight`;
      const offset = tensor.offset + expert * bytes;
      tensors[name] = { ...tensor, name, shape: tensor.shape.slice(1), offset, bytes };
    }
  }
  assert.equal(Object.keys(tensors).length, 9 * (1 + 8));
  const whole = readModel(file);
  const split = readModel(altered(file, { tensors }));
  assert.deepEqual(split.spec, whole.spec);
  const stacked = split.weights.get('layers.2.moe.down');
  const one = whole.weights.get('layers.2.moe.down');
  assert.ok(stacked !== undefined && one !== undefined);
  assert.deepEqual([stacked.shape, stacked.format, stacked.bytes], [one.shape, one.format, one.bytes]);
  assert.deepEqual(
    stacked.parts.map(({ offset }) => offset),
    stacked.parts.map((_, i) => one.parts[0].offset + (i * one.bytes) / 8),
  );

  const odd = {
    'blk.1.ffn_up.5.weight': { ...tensorOf(altered(file, { tensors }), 'blk.1.ffn_up.5.weight'), format: 'F16' },
  };
  assert.throws(
    () => readModel(altered(file, { tensors: { ...tensors, ...odd } })),
    /blk\.1\.ffn_up\.5\.weight is F16/,
  );
  assert.throws(
    () => readModel(altered(file, { tensors: { ...tensors, 'blk.1.ffn_up.7.weight': null } })),
    /blk\.1\.ffn_up\.7\.weight is missing/,
  );
});

test('one number for all layers and an array with one a layer mean the same', async () => {
  const file = await header('llama');
  const plain = readModel(file).spec;
  const array = (...values: number[]) => meta.array('u32', Uint32Array.from(values));
  const same = { 'llama.attention.head_count_kv': array(2, 2, 2), 'llama.attention.head_count': array(4, 4, 4) };
  assert.deepEqual(readModel(altered(file, { metadata: same })).spec, plain);
  const wrong = (values: MetadataValue) => () =>
    readModel(altered(file, { metadata: { 'llama.attention.head_count_kv': values } }));
  assert.throws(wrong(array(2, 2)), /llama\.attention\.head_count_kv is an array of 2; expected .* 3 layers/);
  assert.throws(wrong(array(2, 3, 2)), /llama\.attention\.head_count_kv is 3; expected a divisor/);
  assert.throws(wrong(array(2, 0, 2)), /llama\.attention\.head_count_kv is 0 for layer 1/);
  assert.throws(wrong(meta.array('string', ['2', '2', '2'])), /llama\.attention\.head_count_kv is "2" for layer 0/);
  // One key head in layer 1 contradicts its weights.
  assert.throws(wrong(array(2, 1, 2)), /blk\.1\.attn_k\.weight is \[64, 64\].*\[32, 64\]/);
});

test('the layer that predicts ahead is counted, left out and named', async () => {
  const file = await header('glm4moe');
  const plain = readModel(file);
  const tensors = tensorsAhead(file);
  const metadata = metadataAhead;
  const { spec, ignored } = readModel(altered(file, { metadata, tensors }));
  assert.deepEqual(spec, plain.spec);
  assert.deepEqual(ignored.map(({ name }) => name).sort(), Object.keys(tensors).sort());
  assert.ok(ignored.every(({ reason }) => reason.includes('ahead')));
  // Files without its tensors count it all the same.
  assert.deepEqual(readModel(altered(file, { metadata })).spec, plain.spec);
  assert.throws(() => readModel(altered(file, { tensors })), /glm4moe\.block_count is 3; expected the 4 layers/);
  const all = { 'glm4moe.nextn_predict_layers': meta.u32(3) };
  assert.throws(() => readModel(altered(file, { metadata: all })), /glm4moe\.nextn_predict_layers is 3/);
});

test('the layer that predicts ahead is read where it is wanted: whole, or not at all', async () => {
  const file = await header('glm4moe');
  const plain = readModel(file);
  const tensors = tensorsAhead(file);
  const wanted = (changes: Parameters<typeof altered>[1]) => readModel(altered(file, changes), { mtp: true });
  const { spec, weights, ignored } = wanted({ metadata: metadataAhead, tensors });
  const { mtp, ...rest } = spec;
  assert.deepEqual({ ...rest, mtp: undefined }, plain.spec);
  assert.deepEqual(mtp?.layer, spec.layers[2]);
  assert.deepEqual([mtp?.ownEmbedding, mtp?.ownHead], [false, false]);
  assert.deepEqual(ignored, plain.ignored);
  assert.equal(weights.size, plain.weights.size + Object.keys(tensors).length);
  const { hidden, vocabulary } = spec;
  assert.deepEqual(weights.get('mtp.projection')?.shape, [hidden, 2 * hidden]);

  // An embedding and a head of its own, as some files have them.
  const own = Object.fromEntries(
    ['embed_tokens', 'shared_head_head'].map((part) => {
      const name = `blk.3.nextn.${part}.weight`;
      return [name, { ...tensorOf(file, 'token_embd.weight'), name }];
    }),
  );
  const both = wanted({ metadata: metadataAhead, tensors: { ...tensors, ...own } });
  assert.deepEqual([both.spec.mtp?.ownEmbedding, both.spec.mtp?.ownHead], [true, true]);
  assert.deepEqual(both.weights.get('mtp.head')?.shape, [vocabulary, hidden]);

  const refused = (changes: Parameters<typeof altered>[1]) =>
    assert.throws(
      () => wanted(changes),
      (error: unknown) => error instanceof Refusal && /no layer that predicts/.test(error.message),
    );
  refused({});
  refused({ metadata: metadataAhead });
  refused({ metadata: { ...metadataAhead, 'glm4moe.nextn_predict_layers': meta.u32(2) }, tensors });
  const { 'blk.3.nextn.hnorm.weight': _, ...lacking } = tensors;
  assert.throws(() => wanted({ metadata: metadataAhead, tensors: lacking }), /blk\.3\.nextn\.hnorm\.weight is missing/);
  const llama = await header('llama');
  assert.throws(() => readModel(llama, { mtp: true }), Refusal);
});

test('biases and norms are all there or none is; the first layer says which', async () => {
  const file = await header('glm4moe');
  const without = (pattern: RegExp) =>
    Object.fromEntries([...file.tensors.keys()].filter((name) => pattern.test(name)).map((name) => [name, null]));
  const { spec } = readModel(altered(file, { tensors: without(/attn_[qk]_norm|attn_[qkv]\.bias/) }));
  assert.ok(spec.layers.every(({ attention }) => attention.qkNorm === undefined && !attention.bias.query));
  assert.throws(
    () => readModel(altered(file, { tensors: without(/blk\.2\.attn_q\.bias/) })),
    /blk\.2\.attn_q\.bias is missing/,
  );
  assert.throws(
    () => readModel(altered(file, { tensors: without(/blk\.0\.attn_q\.bias/) })),
    (error) => {
      assert.ok(error instanceof Refusal);
      assert.match(error.message, /blk\.1\.attn_q\.bias, blk\.2\.attn_q\.bias/);
      return true;
    },
  );
});

test('groups of experts are read where they limit the choice, and checked', async () => {
  const file = await header('glm4moe');
  const router = (count: number, used: number) => {
    const metadata = {
      'glm4moe.expert_group_count': meta.u32(count),
      'glm4moe.expert_group_used_count': meta.u32(used),
    };
    const block = readModel(altered(file, { metadata })).spec.layers[1].feedForward;
    assert.ok(block.kind === 'moe');
    return block.moe.router.groups;
  };
  assert.deepEqual(router(4, 2), { count: 4, used: 2, rankedBy: 'twoBest' });
  assert.equal(router(4, 4), undefined);
  assert.equal(router(1, 1), undefined);
  assert.throws(() => router(3, 1), /expert_group_count is 3; expected a divisor/);
  assert.throws(() => router(4, 5), /expert_group_used_count is 5/);
  assert.throws(() => router(8, 1), /expert_group_used_count is 1; expected groups enough for 2/);
  assert.throws(() => router(9, 1), /expert_group_count is 9/);
});

test('what the file says about its router wins over the family, and an unknown gating is refused', async () => {
  const file = await header('qwen2moe');
  const router = (metadata: Changes['metadata']) => {
    const block = readModel(altered(file, { metadata })).spec.layers[0].feedForward;
    assert.ok(block.kind === 'moe');
    return block.moe.router;
  };
  assert.equal(router({}).normalise, false);
  assert.equal(router({ 'qwen2moe.expert_weights_norm': meta.bool(true) }).normalise, true);
  assert.equal(router({ 'qwen2moe.expert_weights_scale': meta.f32(2.5) }).scale, 2.5);
  assert.equal(router({ 'qwen2moe.expert_gating_func': meta.u32(2) }).gating, 'sigmoid');
  assert.throws(() => router({ 'qwen2moe.expert_gating_func': meta.u32(77) }), Refusal);
  assert.throws(
    () => router({ 'qwen2moe.expert_weights_norm': meta.u32(1) }),
    /expert_weights_norm is 1 \(u32\); expected true or false/,
  );
});

test('what glm4moe cannot know by itself must be in the file', async () => {
  const file = await header('glm4moe');
  const needed = [
    'expert_weights_norm',
    'expert_weights_scale',
    'rope.dimension_count',
    'rope.freq_base',
    'expert_shared_count',
    'leading_dense_block_count',
    'attention.layer_norm_rms_epsilon',
  ];
  for (const key of needed) {
    const metadata = { [`glm4moe.${key}`]: null };
    assert.throws(
      () => readModel(altered(file, { metadata })),
      (error) => {
        assert.ok(error instanceof CorruptFileError);
        assert.ok(error.message.includes(`glm4moe.${key} is missing`), error.message);
        return true;
      },
    );
  }
});

test('rope: scalings by name, old files by their own key, and no two at once', async () => {
  assert.deepEqual((await ropeOf('llama', {}))?.scaling, { kind: 'none' });
  const linear = { 'llama.rope.scaling.type': meta.string('linear'), 'llama.rope.scaling.factor': meta.f32(4) };
  assert.deepEqual((await ropeOf('llama', linear))?.scaling, { kind: 'linear', factor: 4 });
  assert.deepEqual((await ropeOf('llama', { 'llama.rope.scale_linear': meta.f32(2) }))?.scaling, {
    kind: 'linear',
    factor: 2,
  });
  assert.deepEqual((await ropeOf('llama3-rope', {}))?.scaling, { kind: 'factors' });
  await assert.rejects(ropeOf('llama3-rope', linear), Refusal);
  const yarn = (
    await ropeOf('llama-yarn', {
      'llama.rope.scaling.yarn_beta_fast': meta.f32(16),
      'llama.rope.scaling.attn_factor': meta.f32(0.5),
      'llama.rope.scaling.finetuned': meta.bool(true),
    })
  )?.scaling;
  assert.ok(yarn?.kind === 'yarn');
  assert.deepEqual([yarn.betaFast, yarn.betaSlow, yarn.originalContext, yarn.truncate], [16, 1, 16, true]);
  assert.ok(Math.abs(yarn.magnitude - 0.5 * (0.1 * Math.log(4) + 1)) < 1e-12);
  await assert.rejects(ropeOf('llama-yarn', { 'llama.rope.scaling.yarn_ext_factor': meta.f32(0) }), Refusal);
  await assert.rejects(ropeOf('llama', { 'llama.rope.scaling.factor': meta.f32(4) }), /llama\.rope\.scaling\.factor/);
  await assert.rejects(ropeOf('llama', { 'llama.rope.freq_base': meta.f32(1) }), /llama\.rope\.freq_base is 1/);
  await assert.rejects(ropeOf('qwen3', { 'qwen3.rope.freq_base': null }), /qwen3\.rope\.freq_base is missing/);
});

test('what is ignored is asked for by name, shown, and never something that is used', async () => {
  const file = altered(await header('llama'), {
    metadata: { 'llama.attention.warp_drive': meta.u32(9), 'other.key': meta.u32(1) },
    tensors: {
      'blk.0.attn_warp.weight': {
        ...tensorOf(await header('llama'), 'blk.0.attn_q.weight'),
        name: 'blk.0.attn_warp.weight',
      },
    },
  });
  const names = ['llama.attention.warp_drive', 'blk.0.attn_warp.weight'];
  assert.throws(
    () => readModel(file),
    (error) => {
      assert.ok(error instanceof Refusal);
      assert.deepEqual(
        error.reasons.map(({ row }) => row),
        names,
      );
      assert.ok(!error.message.includes('other.key'));
      return true;
    },
  );
  assert.throws(() => readModel(file, { ignoreKeys: names.slice(0, 1) }), /blk\.0\.attn_warp\.weight/);
  assert.deepEqual(
    readModel(file, { ignoreKeys: names }).ignored.map(({ name }) => name),
    names,
  );
  assert.throws(() => readModel(file, { ignoreKeys: [...names, 'llama.rope.freq_base'] }), UsageError);
  assert.throws(() => readModel(file, { ignoreKeys: [...names, 'blk.0.attn_q.weight'] }), UsageError);
});

test('counts that no memory could hold are refused by what the file holds', async () => {
  const file = await header('qwen2moe');
  const huge: readonly (readonly [string, number])[] = [
    ['block_count', 2 ** 32 - 1],
    ['embedding_length', 2 ** 32 - 1],
    ['expert_count', 2 ** 26],
    ['attention.head_count', 2 ** 26],
    ['expert_feed_forward_length', 2 ** 26],
    ['attention.key_length', 2 ** 26],
    ['vocab_size', 2 ** 26],
  ];
  for (const [key, value] of huge) {
    const metadata = { [`qwen2moe.${key}`]: meta.u32(value) };
    assert.throws(() => readModel(altered(file, { metadata })), CorruptFileError, key);
  }
  const wide: MetadataValue = { type: 'u64', value: 2n ** 60n };
  assert.throws(
    () => readModel(altered(file, { metadata: { 'qwen2moe.block_count': wide } })),
    /block_count is 1152921504606846976/,
  );
});

test('a vocabulary that is not the embedding’s is named with both numbers', async () => {
  const file = await header('qwen3');
  const tokens = meta.array('string', ['a', 'b']);
  assert.throws(
    () => readModel(altered(file, { metadata: { 'tokenizer.ggml.tokens': tokens } })),
    /tokenizer\.ggml\.tokens holds 2 tokens, but token_embd\.weight has 512 rows/,
  );
  assert.throws(
    () => readModel(altered(file, { metadata: { 'tokenizer.ggml.tokens': meta.u32(512) } })),
    CorruptFileError,
  );
  assert.throws(
    () => readModel(altered(file, { tensors: { 'token_embd.weight': null } })),
    /token_embd\.weight is missing/,
  );
});
