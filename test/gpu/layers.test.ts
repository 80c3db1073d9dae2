/**
 * A model with its first N layers on the GPU and the rest on the CPU is the same model, for every N: official logits, the
 * same greedy tokens, rows that do not depend on their neighbours, and faults that name their layer. All models share one
 * device, so that each kernel is compiled once.
 */

import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { Executable } from '../../src/backend/backend.ts';
import { gpuBackend } from '../../src/backend/gpu/backend.ts';
import { findAdapter } from '../../src/backend/gpu/device.ts';
import { prepareParts } from '../../src/backend/parts.ts';
import { load as loadModel } from '../../src/engine/load.ts';
import { Refusal } from '../../src/errors.ts';
import { openModelFile } from '../../src/format/open.ts';
import type { ByteSource } from '../../src/format/source.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import type { Weights } from '../../src/model/weights.ts';
import { programsOf } from '../../src/plan/place.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { sameBits } from '../conformance/support/compare.ts';
import {
  backendOf,
  type DeviceModel,
  type DeviceOptions,
  planFor,
  relativeRms,
  runTokens,
  stepOf,
} from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { argmax } from '../support/reference.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

/** Weights are BF16 and F32 and the cache is f32: only the order of sums is left, as on the CPU. */
const MOST_DISTANCE = 2e-5;
const MOST_RMS = 2e-6;
const LAYERS = 3;

const base: DeviceOptions = { context: 64, batch: 32, cache: 'f32', threads: 1 };
/** The first of a model stays until the end: kernels live as long as somebody uses them. */
const kept: Executable[] = [];

after(async () => {
  for (const executable of kept) await executable.dispose();
  await closeGpuTestDevice();
});

/** Loads a family with its GPU part on the device of all tests. */
async function load(
  family: string,
  options: DeviceOptions,
  damage: (source: ByteSource, weights: Weights) => ByteSource = (source) => source,
): Promise<DeviceModel> {
  const gpu = await gpuTestDevice();
  const file = await openModelFile(await nodeModelSource(familyFile(family, 'model.gguf')));
  try {
    const { spec, weights } = readModel(file);
    assert.equal(spec.layers.length, LAYERS);
    const graph = buildGraph(spec);
    const plan = planFor({ spec, graph, weights }, { ...base, ...options });
    const sources = file.sources.map((source) => damage(source, weights));
    const request = { plan, programs: programsOf(plan), spec, graph, weights, sources };
    const executable = await prepareParts(request, (device) =>
      device === 'gpu' ? gpuBackend({ gpu }) : backendOf({ device }),
    );
    return { spec, graph, weights, plan, executable };
  } finally {
    await file.close();
  }
}

async function using<T>(model: DeviceModel, use: (model: DeviceModel) => Promise<T>): Promise<T> {
  try {
    return await use(model);
  } finally {
    await model.executable.dispose();
  }
}

function checkLogits(found: Float32Array, expected: Float32Array): void {
  assert.equal(found.length, expected.length);
  const distance = found.reduce((worst, x, i) => Math.max(worst, Math.abs(x - (expected[i] as number))), 0);
  assert.ok(distance <= MOST_DISTANCE, `logits are off by ${distance}`);
  const error = relativeRms(found, expected);
  assert.ok(error <= MOST_RMS, `logits have a relative RMS of ${error}`);
}

async function checkModel(model: DeviceModel, family: string): Promise<void> {
  const expected = readSafetensors(familyFile(family, 'expected.safetensors'));
  const tokens = i32Of(expected, 'tokens');
  const { vocabulary } = model.spec;
  const logits = await runTokens(model, tokens, 0, 'prompt');
  checkLogits(logits, f32Of(expected, 'logits'));
  const greedy = [argmax(logits.subarray(-vocabulary))];
  const last = await runTokens(model, tokens.subarray(-1), tokens.length - 1, 'step');
  checkLogits(last, f32Of(expected, 'logits').subarray(-vocabulary));
  while (greedy.length < 16) {
    const position = tokens.length + greedy.length - 1;
    greedy.push(argmax(await runTokens(model, greedy.slice(-1), position, 'step')));
  }
  assert.deepEqual(greedy, [...i32Of(expected, 'greedy')]);
}

/** Dense layers before those with experts, and dense layers alone. */
for (const family of ['glm4moe', 'qwen3']) {
  describe(family, () => {
    for (let count = LAYERS; count >= 1; count--) {
      test(`${count} of ${LAYERS} layers on the GPU`, async () => {
        const model = await load(family, { device: 'gpu', gpuLayers: count });
        if (count === LAYERS) kept.push(model.executable);
        await checkModel(model, family);
        if (count < LAYERS) await model.executable.dispose();
      });
    }

    test('the last layers on the GPU, which then gets rows from the CPU', async () => {
      for (let border = 1; border < LAYERS; border++) {
        const cuts = [
          { device: 'cpu', end: border },
          { device: 'gpu', end: LAYERS },
        ] as const;
        await using(await load(family, { cuts }), (model) => checkModel(model, family));
      }
    });
  });
}

test('a row of a cut model has the same bits alone and among others', async () => {
  await using(await load('glm4moe', { device: 'gpu', gpuLayers: 2, sessions: 4 }), async (model) => {
    const { executable, spec } = model;
    const rows = [7, 250, 33, 101].map((token, sequence) => ({ token, position: 0, sequence }));
    const together = (await executable.run(stepOf('step', rows, 1))).slice();
    for (const [index, row] of rows.entries()) {
      const alone = await executable.run({ ...stepOf('step', [row], 1), pageTables: [Int32Array.of(index)] });
      sameBits(alone, together.subarray(index * spec.vocabulary, (index + 1) * spec.vocabulary), `row ${index}`);
    }
  });
});

test('what is not finite names its layer, on whichever device it is', async () => {
  for (const [layer, gpuLayers] of [
    [0, 1],
    [1, 2],
    [1, 1],
    [2, LAYERS],
  ] as const) {
    const name = `layers.${layer}.attention.output`;
    const damage = (source: ByteSource, weights: Weights): ByteSource => {
      const [part] = weights.get(name)?.parts ?? [];
      assert.ok(part !== undefined);
      return {
        ...source,
        async readInto(offset, target) {
          await source.readInto(offset, target);
          const end = offset + target.byteLength;
          // BF16: all ones is NaN.
          if (offset <= part.offset && part.offset < end)
            target.fill(0xff, part.offset - offset, part.offset - offset + 2);
        },
      };
    };
    await using(await load('glm4moe', { device: 'gpu', gpuLayers }, damage), async ({ executable }) => {
      for (const mode of ['prompt', 'step'] as const) {
        await assert.rejects(executable.run(stepOf(mode, [{ token: 5, position: 0 }], 1)), {
          name: 'NonFiniteError',
          message: new RegExp(`^layer ${layer} \\(blk\\.${layer}\\): .* is not finite`),
        });
      }
    });
  }
});

test('the library runs a cut model in its engine, whose head is tied to an embedding on the other device', async () => {
  const expected = readSafetensors(familyFile('qwen2', 'expected.safetensors'));
  const tokens = [...i32Of(expected, 'tokens')];
  const model = await loadModel(familyFile('qwen2', 'model.gguf'), {
    gpuLayers: 1,
    context: 64,
    batch: 32,
    cache: 'f32',
    threads: 2,
  });
  try {
    assert.deepEqual(
      model.plan.parts.map(({ device, first, end }) => [device, first, end]),
      [
        ['gpu', 0, 1],
        ['cpu', 1, LAYERS],
      ],
    );
    assert.equal(model.plan.weights.filter(({ name }) => name === 'embedding').length, 2);
    let found: readonly number[] = [];
    const answer = model.session().generate({ tokens }, { temperature: 0, maxTokens: 16, ignoreEos: true });
    for await (const part of answer) if (part.type === 'finish') found = part.tokens;
    assert.deepEqual(found, [...i32Of(expected, 'greedy')]);
  } finally {
    await model.dispose();
  }
});

test('adapters have numbers, and one that there is not is refused with those that there are', async () => {
  const first = await findAdapter(nodePlatform, { number: 0 });
  assert.ok(first.name !== '' && first.maxBindingBytes > 0);
  await assert.rejects(
    findAdapter(nodePlatform, { number: 99 }),
    (error) => error instanceof Refusal && /gpu:99 was asked for, and this machine has gpu:0 .+/.test(error.message),
  );
});
