/**
 * What quantization_config says is read in each writer's words, held against the tensors, and refused by name where it is
 * not supported. Each test alters what a checkpoint's header says.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { JsonObject, JsonValue } from '../../src/format/json.ts';
import type { ModelFile, TensorInfo } from '../../src/format/model-file.ts';
import { openModelFile } from '../../src/format/open.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import { explain } from '../../src/plan/explain.ts';
import { planFor } from '../support/device.ts';
import { checkpointFile } from '../support/families.ts';
import { altered, type Changes, corrupt, refused } from '../support/folder.ts';
import { nodeModelSource } from '../support/node-source.ts';

async function opened(checkpoint: string): Promise<ModelFile> {
  const model = await openModelFile(await nodeModelSource(checkpointFile(checkpoint, 'model.safetensors')));
  await model.close();
  return model;
}

/** The file with its quantization_config changed at one place: `config_groups.group_0.weights.num_bits`. */
function configured(file: ModelFile, path: string, value: JsonValue | undefined): ModelFile {
  const change = (object: JsonObject, [name = '', ...rest]: readonly string[]): JsonObject => {
    const { [name]: found, ...others } = object;
    if (rest.length > 0) return { ...others, [name]: change((found ?? {}) as JsonObject, rest) };
    return value === undefined ? others : { ...others, [name]: value };
  };
  const quantization_config = change(file.folder?.config?.quantization_config as JsonObject, path.split('.'));
  return altered(file, { config: { quantization_config } });
}

test('formats and bytes of each layout, and the scales of whole tensors as weights of their own', async () => {
  const of = async (checkpoint: string, name: string) => {
    const { weights } = readModel(await opened(checkpoint));
    const weight = weights.get(name);
    return [weight?.format, weight?.bytes, weights.get('layers.0.moe.gateScale')?.shape];
  };
  const [experts, hidden, inner] = [4, 192, 160];
  const values = experts * hidden * inner;
  assert.deepEqual(await of('qwen3moe-fp8-block', 'layers.0.moe.down'), ['FP8_32', (values / 32) * 36, undefined]);
  // The rows of the head's input are whole blocks of 128.
  assert.deepEqual(await of('qwen3moe-fp8-block', 'layers.0.attention.output'), [
    'FP8_128',
    (hidden * 128 * 132) / 128,
    undefined,
  ]);
  assert.deepEqual(await of('qwen3moe-fp8-channel', 'layers.0.moe.up'), ['FP8_32', (values / 32) * 36, undefined]);
  assert.deepEqual(await of('qwen3moe-mxfp4', 'layers.0.moe.gate'), ['MXFP4', (values / 32) * 17, undefined]);
  for (const checkpoint of ['qwen3moe-nvfp4-modelopt', 'qwen2moe-nvfp4-mixed']) {
    assert.deepEqual(await of(checkpoint, 'layers.0.moe.down'), ['NVFP4_32', (values / 32) * 18, [experts]]);
  }
  assert.deepEqual((await of('qwen2moe-nvfp4-mixed', 'layers.0.moe.shared.up'))[0], 'BF16');
});

test('what says how to quantise activations is named as not used', async () => {
  const { ignored } = readModel(await opened('qwen3moe-nvfp4-modelopt'));
  const scales = ignored.filter(({ name }) => name.endsWith('.input_scale'));
  assert.equal(scales.length, 2 * 4 * 3);
  assert.ok(scales.every(({ reason }) => reason.includes('activations')));
  const block = readModel(await opened('qwen3moe-fp8-block')).ignored;
  assert.ok(block.some(({ name }) => name === 'quantization_config.activation_scheme'));
});

test('ModelOpt may say it in hf_quant_config.json alone', async () => {
  const file = await opened('qwen3moe-nvfp4-modelopt');
  const without = altered(file, { config: { quantization_config: undefined } });
  assert.deepEqual(readModel(without).weights, readModel(file).weights);
  const neither = {
    ...without,
    folder: { ...(without.folder as NonNullable<ModelFile['folder']>), quantConfig: undefined },
  };
  assert.throws(() => readModel(neither), corrupt(/experts\.0\.\w+ has the scales .* there is no quantization_config/));
});

test('a way of quantising that is not supported is refused with what is', async () => {
  const group = 'config_groups.group_0.weights';
  const cases: readonly (readonly [checkpoint: string, path: string, value: JsonValue | undefined, mention: RegExp])[] =
    [
      [
        'qwen3moe-fp8-block',
        'quant_method',
        'gptq',
        /quant_method of config\.json is "gptq".*fp8.*modelopt.*compressed-tensors/,
      ],
      ['qwen3moe-fp8-block', 'quant_method', undefined, /quant_method of config\.json is "?missing/],
      ['qwen3moe-fp8-block', 'fmt', 'e5m2', /fmt of config\.json is "e5m2"/],
      ['qwen3moe-fp8-block', 'odd', 1, /does not know quantization_config\.odd/],
      ['qwen3moe-fp8-channel', `${group}.num_bits`, 4, /quantises to 4 bits by "channel"/],
      ['qwen3moe-fp8-channel', `${group}.type`, 'int', /type of config\.json is "int"/],
      ['qwen3moe-fp8-channel', `${group}.symmetric`, false, /symmetric of config\.json is false/],
      [
        'qwen3moe-fp8-channel',
        `${group}.odd`,
        1,
        /does not know quantization_config\.config_groups\.group_0\.weights\.odd/,
      ],
      ['qwen3moe-mxfp4', `${group}.group_size`, 16, /4 bits by "group" of 16/],
      ['qwen2moe-nvfp4-mixed', `${group}.group_size`, 32, /4 bits by "tensor_group" of 32/],
      ['qwen3moe-nvfp4-modelopt', 'quant_algo', 'W4A8_AWQ', /quant_algo of config\.json is "W4A8_AWQ"/],
      ['qwen3moe-nvfp4-modelopt', 'group_size', 32, /group_size of config\.json is 32/],
    ];
  for (const [checkpoint, path, value, mention] of cases) {
    const file = configured(await opened(checkpoint), path, value);
    assert.throws(() => readModel(file), refused(mention), `${path} ${JSON.stringify(value)}`);
  }
});

test('hostile values and tensors that do not fit are told by name', async () => {
  const group = 'config_groups.group_0.weights';
  const cases: readonly (readonly [checkpoint: string, path: string, value: JsonValue | undefined, mention: RegExp])[] =
    [
      ['qwen3moe-fp8-block', 'weight_block_size', [128, 0], /weight_block_size of config\.json is \[128,0\]/],
      [
        'qwen3moe-fp8-block',
        'weight_block_size',
        [1e300, 128],
        /weight_scale_inv is F32 \[2, 2\]; expected .*\[1, 2\]/,
      ],
      ['qwen3moe-fp8-block', 'weight_block_size', 128, /weight_block_size of config\.json is 128/],
      ['qwen3moe-fp8-block', 'weight_block_size', [64, 64], /weight_scale_inv is F32 \[2, 2\]; expected .*\[3, 3\]/],
      ['qwen3moe-fp8-block', 'weight_block_size', undefined, /weight_scale is missing; quantization_config says/],
      [
        'qwen3moe-fp8-block',
        'modules_to_not_convert',
        ['model.layers.1'],
        /model\.layers\.1\..* has the scales .* leaves it out/,
      ],
      ['qwen3moe-fp8-block', 'modules_to_not_convert', 7, /modules_to_not_convert of config\.json is 7/],
      ['qwen3moe-fp8-channel', 'ignore', ['re:.*down_proj$'], /down_proj has the scales .* leaves it out/],
      ['qwen3moe-fp8-channel', 'config_groups', {}, /config_groups of config\.json is \{\}/],
      ['qwen3moe-fp8-channel', 'config_groups', undefined, /config_groups of config\.json is "?missing/],
      ['qwen3moe-fp8-channel', `${group}.strategy`, 'tensor', /weight_scale is BF16 \[192, 1\]; expected/],
      ['qwen3moe-nvfp4-modelopt', 'ignore', ['*experts.0*'], /experts\.0\..* leaves it out/],
    ];
  for (const [checkpoint, path, value, mention] of cases) {
    const file = configured(await opened(checkpoint), path, value);
    assert.throws(() => readModel(file), corrupt(mention), `${path} ${JSON.stringify(value)}`);
  }
  const expert = 'model.layers.0.mlp.experts.0.gate_proj';
  const tensors: readonly (readonly [
    checkpoint: string,
    name: string,
    change: Partial<TensorInfo> | undefined,
    mention: RegExp,
  ])[] = [
    ['qwen3moe-nvfp4-modelopt', `${expert}.weight_scale_2`, undefined, /weight_scale_2 is missing/],
    [
      'qwen3moe-nvfp4-modelopt',
      `${expert}.weight_scale_2`,
      { shape: [4] },
      /weight_scale_2 is F32 \[4\]; expected F32 \[\] or \[1\]/,
    ],
    [
      'qwen3moe-nvfp4-modelopt',
      `${expert}.weight_scale`,
      { shape: [160, 6] },
      /weight_scale is F8_E4M3 \[160, 6\]; expected .*\[160, 12\]/,
    ],
    ['qwen3moe-nvfp4-modelopt', `${expert}.weight_scale`, { format: 'U8' }, /weight_scale is U8/],
    ['qwen3moe-nvfp4-modelopt', `${expert}.weight`, { format: 'BF16' }, /weight is BF16/],
    ['qwen3moe-mxfp4', `${expert}.weight_packed`, undefined, /weight_packed is missing/],
    ['qwen3moe-mxfp4', `${expert}.weight_scale`, { format: 'BF16' }, /weight_scale is BF16/],
    ['qwen3moe-fp8-block', `${expert}.weight_scale_inv`, { shape: [2] }, /weight_scale_inv is F32 \[2\]/],
    [
      'qwen3moe-fp8-block',
      `${expert}.weight`,
      { shape: [192, 160] },
      /experts\.0\.gate_proj\.weight is \[192, 160\]; config\.json says \[160, 192\]/,
    ],
  ];
  for (const [checkpoint, name, change, mention] of tensors) {
    const file = await opened(checkpoint);
    const tensor = change && { ...(file.tensors.get(name) as TensorInfo), ...change };
    assert.throws(
      () => readModel(altered(file, { tensors: { [name]: tensor } })),
      corrupt(mention),
      `${name} ${mention}`,
    );
  }
});

test("a group of 16 is never read as one of 32, nor a whole tensor's scale left out", async () => {
  // The same names with the other layout's shapes.
  const file = await opened('qwen2moe-nvfp4-mixed');
  const weights = { num_bits: 4, type: 'float', strategy: 'group', group_size: 32 };
  const asMxfp4 = configured(file, 'config_groups.group_0.weights', weights);
  assert.throws(
    () => readModel(asMxfp4),
    corrupt(/weight_scale is F8_E4M3 \[192, 10\]; expected U8 or F8_E8M0 \[192, 5\]/),
  );
  const attention: Changes<TensorInfo> = Object.fromEntries(
    ['weight_packed', 'weight_scale', 'weight_global_scale'].map((ending) => {
      const from = file.tensors.get(`model.layers.0.mlp.experts.0.gate_proj.${ending}`) as TensorInfo;
      const name = `model.layers.0.mlp.shared_expert.gate_proj.${ending}`;
      return [name, { ...from, name }];
    }),
  );
  const all = configured(
    altered(file, { tensors: { ...attention, 'model.layers.0.mlp.shared_expert.gate_proj.weight': undefined } }),
    'ignore',
    [],
  );
  assert.throws(() => readModel(all), refused(/shared_expert\.gate_proj is NVFP4 with a scale of its whole tensor/));
});

test('experts without end are no memory without end', async () => {
  const file = await opened('qwen3moe-nvfp4-modelopt');
  const tensors: Record<string, TensorInfo> = {};
  for (const ending of ['weight', 'weight_scale', 'weight_scale_2']) {
    const from = file.tensors.get(`model.layers.0.mlp.experts.0.gate_proj.${ending}`) as TensorInfo;
    const name = `model.layers.0.mlp.experts.4294967295.gate_proj.${ending}`;
    tensors[name] = { ...from, name };
  }
  assert.throws(
    () => readModel(altered(file, { tensors })),
    (error) => error instanceof Error && 'code' in error,
  );
});

test('the plan names the weights whose codes and scales are gathered', async () => {
  const { spec, weights } = readModel(await opened('qwen3moe-nvfp4-modelopt'));
  const plan = planFor({ spec, graph: buildGraph(spec), weights }, { context: 64 });
  const gathered = plan.weights.filter((weight) => weight.gathered === true).map(({ name }) => name);
  const matrices = [0, 1].flatMap((layer) => ['gate', 'up', 'down'].map((part) => `layers.${layer}.moe.${part}`));
  assert.deepEqual(gathered.sort(), matrices.sort());
  assert.match(explain(plan), /NVFP4_32 +\S+ \S+ +6 weights, gathered as read, repacked: interleave4/);
});
