/**
 * A plan that cuts a model between the GPU and the CPU: every operation, weight and cache has its device, and as many
 * layers as fit are found to the byte. Plans are made without a device, so no GPU is needed.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { aCard as adapter, type DeviceOptions, planFor } from '../../test/support/device.ts';
import { families, familyFile } from '../../test/support/families.ts';
import { nodeModelSource } from '../../test/support/node-source.ts';
import { OutOfMemoryError, Refusal } from '../errors.ts';
import { openModelFile } from '../format/open.ts';
import { buildGraph } from '../model/decoder.ts';
import { readModel } from '../model/read-model.ts';
import { explain } from './explain.ts';
import type { DeviceName, Plan, PlannedPart } from './plan.ts';
import { showBytes } from './show.ts';

async function model(family: string) {
  const file = await openModelFile(await nodeModelSource(familyFile(family, 'model.gguf')));
  await file.close();
  const { spec, weights } = readModel(file);
  return { spec, weights, graph: buildGraph(spec) };
}

const onGpu = (gpuLayers: DeviceOptions['gpuLayers'], more: DeviceOptions = {}): DeviceOptions => ({
  context: 64,
  device: 'gpu',
  gpuLayers,
  adapter,
  ...more,
});

/** The layer that a weight's name gives it, those before the first and after the last included. */
function layerOf(name: string, layers: number): number {
  const [, number] = /^layers\.(\d+)\./.exec(name) ?? [];
  return number === undefined ? (name === 'embedding' ? -1 : layers) : Number(number);
}

function checkHomes(plan: Plan, count: number, layers: number): void {
  const deviceOf = (layer: number): DeviceName => (layer < count ? 'gpu' : 'cpu');
  for (const { layer, device, output } of plan.operations) assert.equal(device, deviceOf(layer), output);
  const homes = new Map<string, DeviceName[]>();
  for (const { name, device } of plan.weights) homes.set(name, [...(homes.get(name) ?? []), device]);
  for (const [name, devices] of homes) {
    // Both read the embedding where the head is tied to it, and the factors of rope.
    if (devices.length === 2) {
      assert.ok(name === 'embedding' || name === 'ropeFactors', name);
      assert.deepEqual(devices, ['gpu', 'cpu']);
    } else if (name !== 'ropeFactors') assert.deepEqual(devices, [deviceOf(layerOf(name, layers))], name);
  }
}

for (const family of families) {
  test(`${family}: the first N layers are on the GPU, the rest on the CPU, and no byte is lost`, async () => {
    const given = await model(family);
    const layers = given.spec.layers.length;
    const tied = given.spec.head.tied;
    const whole = planFor(given, onGpu(layers));
    const cpu = planFor(given, { context: 64, cache: 'f16' });
    for (let count = 1; count < layers; count++) {
      const plan = planFor(given, onGpu(count));
      assert.deepEqual(
        plan.parts.map(({ device, first, end }) => [device, first, end]),
        [
          ['gpu', 0, count],
          ['cpu', count, layers],
        ],
      );
      assert.equal(plan.device, 'gpu');
      assert.ok(plan.reproducible);
      checkHomes(plan, count, layers);
      assert.equal(plan.weights.filter(({ name }) => name === 'embedding').length, tied ? 2 : 1);
      assert.equal(plan.operations.filter(({ kind }) => kind === 'incoming').length, 1);
      const sum = (of: (part: PlannedPart) => number) => plan.parts.reduce((total, part) => total + of(part), 0);
      for (const name of ['weights', 'cache', 'buffers', 'total'] as const)
        assert.equal(
          plan.bytes[name],
          sum(({ bytes }) => bytes[name]),
        );
      assert.equal(plan.cache.bytes, plan.bytes.cache);
      // A layer's cache is as large on either device, and in one place only.
      assert.equal(plan.bytes.cache, whole.bytes.cache);
      assert.equal(plan.bytes.cache, cpu.bytes.cache);
      assert.equal(plan.threads, 2);
      assert.ok(plan.parts[1]?.features.includes('simd') && !plan.parts[0]?.features.includes('simd'));
      // It prints and survives JSON.
      assert.deepEqual(JSON.parse(JSON.stringify(plan)).parts.length, 2);
      const text = explain(plan);
      assert.match(text, /^device +embedding, layers? 0.*: gpu \(a card\), subgroups$/m);
      assert.match(text, new RegExp(`^ +layers? ${count}.*, head: cpu, 2 threads`, 'm'));
      assert.equal(/^ {2}embedding: on gpu and cpu, which both read it$/m.test(text), tied);
      assert.match(text, /^ +gpu +cpu +in all$/m);
      const total = [...plan.parts, plan].map(({ bytes }) => showBytes(bytes.total)).join(' +');
      assert.match(text, new RegExp(`^ +total +${total.replaceAll('.', '\\.')}$`, 'm'));
      assert.match(text, /^ {2}between devices\n +incoming +.*on cpu$/m);
    }
    assert.deepEqual(
      whole.parts.map(({ device, first, end }) => [device, first, end]),
      [['gpu', 0, layers]],
    );
    assert.deepEqual(planFor(given, onGpu(layers + 5)), whole);
    assert.deepEqual(planFor(given, onGpu('auto')), whole);
    assert.deepEqual(planFor(given, { context: 64, gpuLayers: 0 }), planFor(given, { context: 64 }));
  });
}

describe('as many layers as fit', () => {
  test('are found to the byte of the budget', async () => {
    const given = await model('glm4moe');
    const layers = given.spec.layers.length;
    const needs = Array.from({ length: layers }, (_, at) => planFor(given, onGpu(at + 1)).parts[0]?.bytes.total ?? 0);
    for (const [at, bytes] of needs.entries()) {
      const budget = (gpuMemoryBytes: number, gpuLayers: DeviceOptions['gpuLayers'] = 'auto') =>
        planFor(given, onGpu(gpuLayers, { gpuMemoryBytes }));
      const plan = budget(bytes);
      assert.equal(plan.parts[0]?.end, at + 1);
      assert.equal(plan.parts[0]?.memoryBytes, bytes);
      if (at > 0) assert.equal(budget(bytes - 1).parts[0]?.end, at);
      else {
        assert.throws(
          () => budget(bytes - 1),
          (error) =>
            error instanceof OutOfMemoryError &&
            /^layer 0 does not fit on the GPU: .* may be used; .*--gpu-memory.*--device cpu/.test(error.message),
        );
      }
      // What was asked for by number is not cut.
      assert.throws(() => budget(bytes - 1, at + 1), OutOfMemoryError);
    }
  });

  test('are those that the GPU can bind', async () => {
    const given = await model('glm4moe');
    const layers = given.spec.layers.length;
    // In short runs the logits are the largest buffer, and only the whole model has them there.
    const largest = (count: number) =>
      Math.max(
        ...[planFor(given, onGpu(count, { batch: 8 }))].flatMap(({ weights, buffers }) =>
          [...weights, ...buffers].filter(({ device }) => device === 'gpu').map(({ bytes }) => bytes),
        ),
      );
    const bound = (maxBindingBytes: number) =>
      planFor(given, onGpu('auto', { batch: 8, adapter: { ...adapter, maxBindingBytes } }));
    assert.ok(largest(layers) > largest(layers - 1));
    assert.equal(bound(largest(layers)).parts[0]?.end, layers);
    assert.equal(bound(largest(layers) - 1).parts[0]?.end, layers - 1);
    assert.throws(() => bound(16), /takes .*, and this GPU binds at most 16 B at once/);
  });

  test('a default context is cut for layers that were asked for by number, on either device', async () => {
    const given = await model('glm4moe');
    const trained = { ...given, spec: { ...given.spec, trainedContext: 4096 } };
    const plan = planFor(trained, onGpu(2, { context: undefined }));
    assert.equal(plan.context, 4096);
    const [gpu, cpu] = plan.parts.map(({ bytes }) => bytes.total) as [number, number];
    const shorterOnGpu = planFor(trained, onGpu(2, { context: undefined, gpuMemoryBytes: gpu - 1 }));
    assert.deepEqual([shorterOnGpu.context, shorterOnGpu.parts[0]?.end], [2048, 2]);
    assert.match(shorterOnGpu.contextReason, /^what fits in .* and .*$/);
    const shorterOnCpu = planFor(trained, onGpu(2, { context: undefined, memoryBytes: cpu - 1 }));
    assert.equal(shorterOnCpu.context, 2048);
    // All layers, however long the context that was hoped for: then fewer layers, not a shorter context.
    const fewer = planFor(trained, onGpu('auto', { context: undefined, gpuMemoryBytes: gpu }));
    assert.deepEqual([fewer.context, fewer.parts[0]?.end], [4096, 2]);
  });
});

test('experts whose inputs are weighted are not computed apart: fewer layers go to the GPU, and a split is refused by name', async () => {
  const given = await model('llama4');
  const layers = given.spec.layers.length;
  const whole = planFor(given, onGpu(layers));
  const less = planFor(given, onGpu('auto', { gpuMemoryBytes: whole.bytes.total - 1 }));
  assert.deepEqual([less.experts, less.parts[0]?.device, less.parts[0]?.end], [undefined, 'gpu', layers - 1]);
  assert.throws(
    () => planFor(given, onGpu(layers, { cpuMoe: true })),
    (error) =>
      error instanceof Refusal &&
      error.reasons.some(({ reason }) => reason === 'does not serve weights on the inputs of experts'),
  );
});

describe('device auto', () => {
  test('is the GPU where the model fits, else the CPU with the reason', async () => {
    const given = await model('qwen3');
    const auto = (more: DeviceOptions = {}) => planFor(given, { context: 64, device: 'auto', adapter, ...more });
    const gpu = auto();
    assert.deepEqual([gpu.device, gpu.deviceReason, gpu.adapter], ['gpu', undefined, 'a card']);
    const small = auto({ gpuMemoryBytes: 1000 });
    assert.equal(small.device, 'cpu');
    assert.match(small.deviceReason ?? '', /^layer 0 does not fit on the GPU: .* and 1 kB may be used$/);
    const none = auto({ adapter: undefined });
    assert.deepEqual([none.device, none.deviceReason], ['cpu', 'no GPU was found']);
    assert.match(explain(none), /^ +auto was asked for, but no GPU was found$/m);
    const bad = auto({ adapter: { ...adapter, maxBindingBytes: 16 } });
    assert.match(bad.deviceReason ?? '', /this GPU binds at most 16 B at once$/);
    const few = auto({ adapter: { ...adapter, maxBindings: 4 } });
    assert.match(few.deviceReason ?? '', /binds \d+ buffers, and this GPU takes 4 a kernel/);
    // Nothing else of the plan is other than the CPU's.
    assert.deepEqual({ ...small, deviceReason: undefined }, planFor(given, { context: 64 }));
  });
});
