/** What a plan is told of an adapter, and what is told of a device that fails. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { DeviceLostError, OutOfMemoryError } from '../../errors.ts';
import type { Platform } from '../../platform/platform.ts';
import { adapterFacts, Gpu } from './device.ts';

const language = new Set(['packed_4x8_integer_dot_product', 'subgroup_id']);
const config = { M: 16, N: 16, K: 16, componentType: 'f16', resultComponentType: 'f32' };

interface Given {
  readonly features?: readonly string[];
  readonly configs?: readonly object[] | undefined;
  readonly subgroups?: readonly [least: number, most: number];
  readonly workgroupBytes?: number;
  readonly threads?: number;
  readonly info?: Partial<GPUAdapterInfo>;
}

/** One with everything that products on subgroup matrices need, but for what is said. */
function adapter(given: Given = {}): GPUAdapter {
  const { features = ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix', 'depth-clip-control'] } =
    given;
  const { subgroups = [32, 32], workgroupBytes = 49152, threads = 1024 } = given;
  const configs = 'configs' in given ? given.configs : [{ ...config, K: 8 }, config];
  return {
    features: new Set(features),
    info: {
      vendor: 'maker',
      architecture: 'chip',
      device: '',
      description: '',
      ...given.info,
      subgroupMinSize: subgroups[0],
      subgroupMaxSize: subgroups[1],
      subgroupMatrixConfigs: configs,
    },
    limits: {
      maxBufferSize: 1024,
      maxStorageBufferBindingSize: 512,
      maxStorageBuffersPerShaderStage: 10,
      maxComputeWorkgroupStorageSize: workgroupBytes,
      maxComputeInvocationsPerWorkgroup: threads,
    },
  } as unknown as GPUAdapter;
}

test('features that kernels use, by their names, and no others', () => {
  const { name, features, maxBufferBytes, maxBindingBytes, maxBindings } = adapterFacts(adapter(), language);
  assert.deepEqual([name, maxBufferBytes, maxBindingBytes, maxBindings], ['maker chip', 1024, 512, 10]);
  assert.ok(features.includes('shader-f16') && features.includes('packed_4x8_integer_dot_product'));
  assert.ok(!features.includes('depth-clip-control'));
});

test('is called by its card and its driver, as far as they are told', () => {
  const name = (info: Partial<GPUAdapterInfo>) => adapterFacts(adapter({ info })).name;
  assert.equal(name({ description: 'a driver 1.2' }), 'a driver 1.2');
  assert.equal(name({ device: 'card-x1--' }), 'card-x1');
  assert.equal(name({ device: 'card-x1-', description: 'a driver 1.2' }), 'card-x1, a driver 1.2');
});

test('is software where it says so, and where its name does', () => {
  const software = (info: Partial<GPUAdapterInfo>) => adapterFacts(adapter({ info })).software;
  assert.ok(software({ isFallbackAdapter: true }));
  assert.ok(software({ isFallbackAdapter: false, description: 'llvmpipe (LLVM 19, 256 bits)' }));
  assert.ok(software({ isFallbackAdapter: false, architecture: 'swiftshader' }));
  assert.ok(!software({ isFallbackAdapter: false, description: 'a driver' }));
});

/** A device that reports `error` of whatever is made on it. */
function failing(error: object): Pick<Platform, 'gpu'> {
  const device = Object.assign(new EventTarget(), {
    lost: new Promise(() => {}),
    pushErrorScope() {},
    popErrorScope: async () => error,
  });
  const given = Object.assign(adapter(), { requestDevice: async () => device });
  return { gpu: async () => ({ requestAdapter: async () => given }) as unknown as GPU };
}

test('memory that a GPU has not is told by name, with what to do, in one line', async () => {
  class GPUOutOfMemoryError {
    readonly message = 'Allocation size too large\n - While calling CreateBuffer\n    at Vulkan.cpp:1\n';
  }
  const gpu = await Gpu.open(failing(new GPUOutOfMemoryError()));
  await assert.rejects(
    gpu.guarded(() => 1),
    (error) =>
      error instanceof OutOfMemoryError &&
      /^the GPU has no memory left: Allocation size too large; give it fewer layers \(-g N\), .*$/.test(error.message),
  );
});

test('anything else that a GPU refuses is told by what it says', async () => {
  class GPUValidationError {
    readonly message = 'no such buffer\nand more';
  }
  const gpu = await Gpu.open(failing(new GPUValidationError()));
  await assert.rejects(
    gpu.guarded(() => 1),
    (error) => error instanceof DeviceLostError && error.message === 'the GPU refused a command: no such buffer',
  );
});

describe('subgroup matrices', () => {
  const offers = (given: Given, words: ReadonlySet<string> = language) =>
    adapterFacts(adapter(given), words).features.includes('subgroup-matrix-f16');

  test('are offered where everything is that their kernels take for granted', () => assert.ok(offers({})));

  const lacking: Readonly<Record<string, Given>> = {
    'f16 in shaders': { features: ['subgroups', 'chromium-experimental-subgroup-matrix'] },
    subgroups: { features: ['shader-f16', 'chromium-experimental-subgroup-matrix'] },
    'the feature itself': { features: ['shader-f16', 'subgroups'] },
    'a configuration of the size': { configs: [{ ...config, M: 8, N: 8, K: 8 }] },
    'sums in f32': { configs: [{ ...config, resultComponentType: 'f16' }] },
    'inputs in f16': { configs: [{ ...config, componentType: 'i8' }] },
    'any word about configurations': { configs: undefined },
    'subgroups of one size': { subgroups: [32, 64] },
    'subgroups of 32': { subgroups: [64, 64] },
    'workgroup memory': { workgroupBytes: 49151 },
    threads: { threads: 511 },
  };
  for (const [what, given] of Object.entries(lacking)) {
    test(`are not without ${what}`, () => assert.ok(!offers(given)));
  }

  test('are not where a subgroup cannot tell its number', () => assert.ok(!offers({}, new Set())));
});
