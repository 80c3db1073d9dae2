/**
 * Experts that are split: slots are shared out to the last one, within what the GPU binds and the memory has; what cannot be
 * is refused by name before anything is loaded. Plans are made without a device.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { aCard, type DeviceOptions, planFor } from '../../test/support/device.ts';
import { familyModel, largeModel, type PlannedModel } from '../../test/support/planned-models.ts';
import type { AdapterFacts } from '../backend/gpu/device.ts';
import { deviceBytes } from '../backend/gpu/layout.ts';
import { slabWeights } from '../backend/gpu/slab.ts';
import { OutOfMemoryError, UsageError } from '../errors.ts';
import type { Weights } from '../model/weights.ts';
import { type ExpertChoice, planExperts } from './experts.ts';
import { explain } from './explain.ts';
import type { PlannedExperts } from './plan.ts';

const GIB = 2 ** 30;

const adapter: AdapterFacts = { ...aCard, maxBufferBytes: 4 * GIB, maxBindingBytes: 4 * GIB };

const large = await largeModel();
type Model = PlannedModel;

const layersWithExperts = ({ spec }: Model) =>
  spec.layers.flatMap(({ feedForward }, layer) => (feedForward.kind === 'moe' ? [layer] : []));

/** Every third layer's down matrices in a larger format, as mixed quantizations have them. */
function mixed(model: Model): Model {
  const weights: Weights = new Map(
    [...model.weights].map(([name, weight]) => {
      const [, layer] = /^layers\.(\d+)\.moe\.down$/.exec(name) ?? [];
      return [name, layer !== undefined && Number(layer) % 3 === 0 ? { ...weight, format: 'Q8_0' as const } : weight];
    }),
  );
  return { ...model, weights };
}

function planned(
  model: Model,
  choice: Partial<ExpertChoice>,
  { budget = Number.POSITIVE_INFINITY, largest = Number.POSITIVE_INFINITY } = {},
): PlannedExperts {
  const platform = { threads: 2, freeMemoryBytes: GIB, features: new Set<string>() };
  const request = { ...model, ignored: [], options: {}, platform };
  return planExperts(
    { layers: layersWithExperts(model), policy: 'slru', ...choice },
    { request, promptRows: 512, budget, largest },
  );
}

/** What holds of all slabs, however many slots there are. */
function checkSlabs(model: Model, { slabs, slots, layers }: PlannedExperts, largest: number, what: string): void {
  const [first] = layers;
  const feedForward = model.spec.layers[first as number]?.feedForward;
  assert.ok(feedForward?.kind === 'moe');
  assert.deepEqual(
    slabs.flatMap((slab) => slab.layers).sort((a, b) => a - b),
    layers,
    what,
  );
  assert.equal(
    slabs.reduce((sum, slab) => sum + slab.slots, 0),
    slots,
    what,
  );
  for (const slab of slabs) {
    assert.ok(slab.passing >= 1 && slab.slots >= 0 && slab.slots <= slab.layers.length * feedForward.moe.experts, what);
  }
  for (const weight of slabWeights(slabs, model.weights)) {
    const bytes = deviceBytes(weight);
    assert.ok(bytes <= largest, `${what}: ${weight.name} takes ${bytes}, and ${largest} are bound at once`);
  }
}

describe('slots', () => {
  test('are as many as were asked for, from one to all', async () => {
    for (const model of [
      await familyModel('qwen3moe'),
      await familyModel('glm4moe'),
      mixed(await familyModel('qwen3moe')),
      large,
    ]) {
      const all = planned(model, { size: 'none' }).experts;
      for (let slots = 1; slots <= all; slots += all > 1000 ? 37 : 1) {
        const made = planned(model, { size: { kind: 'slots', slots } });
        assert.equal(made.slots, slots);
        checkSlabs(model, made, Number.POSITIVE_INFINITY, `${slots} of ${all}`);
      }
      for (const size of [
        { kind: 'slots', slots: all + 1 },
        { kind: 'percent', percent: 100 },
        { kind: 'bytes', bytes: 2 ** 50 },
      ] as const) {
        assert.equal(planned(model, { size }).slots, all);
      }
      assert.equal(planned(model, {}).slots, all);
    }
  });

  test('are in more slabs where one cannot be bound at once, and still as many', () => {
    for (const model of [large, mixed(large)]) {
      const whole = planned(model, { size: { kind: 'percent', percent: 100 } });
      for (const largest of [GIB, GIB / 4, 100e6]) {
        let most = 0;
        for (const percent of [0.1, 1, 10, 33, 50, 66, 90, 100]) {
          const made = planned(model, { size: { kind: 'percent', percent } }, { largest });
          const asked = planned(model, { size: { kind: 'percent', percent } }).slots;
          checkSlabs(model, made, largest, `${percent}% with ${largest} bytes at once`);
          assert.ok(made.slots === asked || made.slabs.length === whole.layers.length, `${made.slots} of ${asked}`);
          if (made.slots < asked) assert.equal(made.status, 'budget exhausted');
          assert.ok(made.slots >= most);
          most = made.slots;
        }
      }
    }
  });

  test('are none of the largest experts, which then pass through one at a time', () => {
    const [one] = slabWeights([{ layers: [0], slots: 1, passing: 0 }], large.weights);
    assert.ok(one !== undefined);
    const largest = deviceBytes(one) * 1.5;
    const made = planned(large, { size: { kind: 'percent', percent: 50 } }, { largest });
    assert.deepEqual([made.slots, made.status], [0, 'budget exhausted']);
    checkSlabs(large, made, largest, 'one at once');
    assert.ok(made.slabs.every(({ passing }) => passing === 1));
  });

  test('take no more bytes than they may', () => {
    for (const model of [large, mixed(large)]) {
      for (const bytes of [4e6, 1e9, 5e9, 12e9]) {
        for (const made of [
          planned(model, { size: { kind: 'bytes', bytes } }),
          planned(model, {}, { budget: bytes }),
        ]) {
          const held = made.slabs.map((slab) => ({ ...slab, passing: 0 }));
          const taken = slabWeights(held, model.weights).reduce((sum, weight) => sum + deviceBytes(weight), 0);
          // Of layers that are not alike the last slot may be of the larger kind.
          assert.ok(taken <= bytes + 2e6, `${taken} of ${bytes}`);
          assert.ok(taken > bytes - 5e6, `${taken} of ${bytes}`);
        }
      }
    }
  });

  test('have a status', () => {
    const status = (choice: Partial<ExpertChoice>, budget?: number) => planned(large, choice, { budget }).status;
    const slots = (count: number) => ({ size: { kind: 'slots', slots: count } }) as const;
    assert.equal(planned(large, {}).recommended, 48 * 16);
    assert.equal(status(slots(48 * 16)), 'ok');
    assert.equal(status(slots(48 * 16 - 1)), 'below recommended');
    assert.equal(status({ size: 'none' }), 'below recommended');
    assert.equal(status({}), 'ok');
    assert.equal(status({}, 5e9), 'ok');
    assert.equal(status({}, 1e9), 'budget exhausted');
    assert.equal(status({}, 0), 'budget exhausted');
  });

  test('a prompt takes as many pairs to the CPU as its rows may leave there', () => {
    const used = 8;
    for (const [policy, size, passes, hostPairs] of [
      ['slru', { kind: 'percent', percent: 50 }, 'balanced', 4096],
      // All of a prompt passes through the GPU, only steps go to the CPU.
      ['static', { kind: 'percent', percent: 50 }, 'all', 64 * used],
      ['static', 'none', 'balanced', 4096],
    ] as const) {
      const made = planned(large, { policy, size });
      assert.deepEqual([made.passes, made.hostPairs], [passes, hostPairs]);
      assert.equal(made.uploads, policy === 'static' ? 0 : 4);
    }
  });
});

const onGpu = (more: DeviceOptions): DeviceOptions => ({ context: 64, device: 'gpu', adapter, ...more });

describe('a plan', () => {
  test('says of a 30B model on 8 GiB how many experts fit, how many were advisable, and stays inside', () => {
    const plan = planFor(large, {
      device: 'gpu',
      adapter,
      gpuMemoryBytes: 8 * GIB,
      memoryBytes: 64 * GIB,
      context: 4096,
    });
    const [gpu, cpu] = plan.parts;
    const { experts } = plan;
    assert.ok(gpu !== undefined && cpu !== undefined && experts !== undefined);
    assert.deepEqual([gpu.device, gpu.first, gpu.end, gpu.split?.length], ['gpu', 0, 48, 48]);
    assert.deepEqual([cpu.device, cpu.first, cpu.end, cpu.experts?.length], ['cpu', 48, 48, 48]);
    assert.deepEqual([experts.experts, experts.recommended, experts.status], [48 * 128, 48 * 16, 'ok']);
    assert.ok(gpu.bytes.total <= 8 * GIB, `${gpu.bytes.total} bytes`);
    // Another slot of each slab would not fit.
    assert.ok(gpu.bytes.total > 8 * GIB - 3e6 * experts.slabs.length, `${gpu.bytes.total} bytes`);
    assert.equal(plan.reproducible, false);
    const text = explain(plan);
    assert.match(
      text.replaceAll(/\s+/g, ' '),
      / experts 2,\d{3} of 6,144 on the GPU \(\d\d%, slru, at first as many of each layer, at most 4 brought there a step\); 768 are recommended: ok /,
    );
    assert.match(text, /not reproducible/);
    assert.equal(JSON.parse(JSON.stringify(plan)).experts.slots, experts.slots);
  });

  test('says how many layers never leave the GPU', async () => {
    const glm = await familyModel('glm4moe');
    const experts = 8;
    const uses = (...hot: readonly number[]) => [0, 1].map((layer) => new Float64Array(experts).fill(hot[layer]));
    for (const [more, said] of [
      [{ cpuMoe: true }, '0 of its 2 layers with experts never leave the GPU'],
      [{ cpuMoe: 2 }, '1 of its 2 layers with experts never leave the GPU (2)'],
      [{ expertCache: 'static:50%' }, '0 of its 2 layers with experts never leave the GPU'],
      [{ expertCache: 'static:60%', expertUses: uses(1, 2) }, '1 of its 2 layers with experts never leave the GPU (2)'],
      // What may leave is not there for good.
      [{ expertCache: 'lfu:60%', expertUses: uses(1, 2) }, '0 of its 2 layers with experts never leave the GPU'],
    ] as const) {
      const plan = planFor(glm, onGpu(more));
      assert.ok(explain(plan).replaceAll(/\s+/g, ' ').includes(said), JSON.stringify(more));
    }
  });

  test('has its experts where they were asked for', async () => {
    const glm = await familyModel('glm4moe');
    const moeLayers = layersWithExperts(glm);
    assert.deepEqual(moeLayers, [1, 2]);
    const split = (more: DeviceOptions) => planFor(glm, onGpu(more)).experts;
    assert.deepEqual([split({ cpuMoe: true })?.layers, split({ cpuMoe: true })?.slots], [moeLayers, 0]);
    assert.deepEqual(split({ cpuMoe: 2 })?.layers, [1]);
    assert.deepEqual(split({ cpuMoe: 99 })?.layers, moeLayers);
    assert.deepEqual(split({ gpuLayers: 2, expertCache: 'lfu:3' })?.layers, [1]);
    assert.deepEqual(split({ gpuLayers: 2, expertCache: 'lfu:3' })?.slots, 3);
    const whole = planFor(glm, onGpu({}));
    assert.equal(whole.experts, undefined);
    for (const [more, reproducible] of [
      [{}, true],
      [{ expertCache: 'static:3' }, true],
      [{ expertCache: 'slru:3' }, false],
      [{ expertCache: 'lfu:3' }, false],
    ] as const) {
      assert.equal(planFor(glm, onGpu(more)).reproducible, reproducible, JSON.stringify(more));
    }
  });

  test('says of which layers none is on the GPU, and of others only where there are any', async () => {
    const glm = await familyModel('glm4moe');
    const said = (more: DeviceOptions) => explain(planFor(glm, onGpu(more))).replaceAll(/\s+/g, ' ');
    for (const [cpuMoe, layers] of [
      [2, 'layer 1'],
      [true, 'layers 1, 2'],
    ] as const) {
      assert.match(said({ cpuMoe }), new RegExp(` experts of ${layers} none on the GPU all on the CPU; of a prompt `));
    }
    for (const expertCache of ['slru:100%', 'lfu:999999', 'static:100%']) {
      assert.doesNotMatch(said({ expertCache }), /the others on the CPU/, expertCache);
    }
    for (const expertCache of ['slru:1', 'static:1']) {
      assert.match(
        said({ expertCache }),
        /; \d+ are recommended: below recommended the others on the CPU; of a prompt /,
      );
    }
  });
});

describe('before loading is refused', () => {
  const refused = (model: Model, more: DeviceOptions, message: RegExp, option: string) =>
    assert.throws(
      () => planFor(model, { context: 64, adapter, ...more }),
      (error) => error instanceof UsageError && message.test(error.message) && error.data.option === option,
      JSON.stringify(more),
    );

  test('what asks for two things at once, or of a model or a device that has no part in it', async () => {
    const glm = await familyModel('glm4moe');
    const dense = await familyModel('qwen3');
    const both = /expertCache \(--expert-cache\) and cpuMoe \(--cpu-moe, --n-cpu-moe\) both say where experts go/;
    for (const cpuMoe of [true, 1, 99] as const) {
      refused(glm, { device: 'gpu', expertCache: 'slru:1', cpuMoe }, both, 'expertCache');
    }
    for (const [options, option, flag] of [
      [{ expertCache: 'slru:1' }, 'expertCache', '--expert-cache'],
      [{ cpuMoe: true }, 'cpuMoe', '--cpu-moe'],
      [{ cpuMoe: 2 }, 'cpuMoe', '--n-cpu-moe'],
    ] as const) {
      const only = new RegExp(`^${option} \\(${flag}\\) is of use only where layers run on a GPU`);
      const none = new RegExp(`^${option} \\(${flag}\\) splits .* and it has no experts; leave it out`);
      for (const device of [{}, { device: 'cpu' }, { device: 'reference' }, { gpuLayers: 0 }] as const) {
        refused(glm, { ...device, ...options }, only, option);
      }
      refused(glm, { device: 'gpu', gpuLayers: 0, ...options }, only, option);
      refused(glm, { gpuLayers: 0, ...options }, /, and gpuLayers \(-g\) is 0; leave one of them out$/, option);
      refused(dense, { device: 'gpu', ...options }, none, option);
      refused(glm, { gpuLayers: 1, ...options }, /none of its layers with experts is on the GPU; leave it out/, option);
    }
    const dry =
      /^cpuMoe \(--n-cpu-moe\) leaves the experts of the first 1 layer to the CPU, and it has none: .* layer 1; give it at least 2$/;
    refused(glm, { device: 'gpu', cpuMoe: 1 }, dry, 'cpuMoe');
  });

  test('a size that does not read, or that is not even one expert', async () => {
    const glm = await familyModel('glm4moe');
    for (const expertCache of ['', 'slru:', 'slru:0', 'slru:1.5', 'fifo:3', 'slru:101%', 'lfu:1:2', 'slru:-1']) {
      refused(glm, { device: 'gpu', expertCache }, /^--expert-cache expects one of slru, lfu, static/, 'expertCache');
    }
    for (const expertCache of ['slru:0.01%', 'static:100B']) {
      refused(glm, { device: 'gpu', expertCache }, /holds not one expert/, 'expertCache');
    }
  });

  test('a cache larger than the memory it is to lie in', () => {
    const options = { device: 'gpu', adapter, memoryBytes: 64 * GIB, context: 512 } as const;
    for (const expertCache of ['slru:100%', 'static:6000', 'lfu:9GiB']) {
      assert.throws(
        () => planFor(large, { ...options, gpuLayers: 48, gpuMemoryBytes: 8 * GIB, expertCache }),
        (error) =>
          error instanceof OutOfMemoryError && /^the model does not fit on the GPU: .*--gpu-memory/.test(error.message),
        expertCache,
      );
    }
  });
});
