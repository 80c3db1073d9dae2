/** What a plan is told of an adapter. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { adapterFacts } from './device.ts';

const language = new Set(['packed_4x8_integer_dot_product', 'subgroup_id']);
const config = { M: 16, N: 16, K: 16, componentType: 'f16', resultComponentType: 'f32' };

interface Given {
  readonly features?: readonly string[];
  readonly configs?: readonly object[] | undefined;
  readonly subgroups?: readonly [least: number, most: number];
  readonly workgroupBytes?: number;
  readonly threads?: number;
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
      description: '',
      subgroupMinSize: subgroups[0],
      subgroupMaxSize: subgroups[1],
      subgroupMatrixConfigs: configs,
    },
    limits: {
      maxBufferSize: 1024,
      maxStorageBufferBindingSize: 512,
      maxComputeWorkgroupStorageSize: workgroupBytes,
      maxComputeInvocationsPerWorkgroup: threads,
    },
  } as unknown as GPUAdapter;
}

test('features that kernels use, by their names, and no others', () => {
  const { name, features, maxBufferBytes, maxBindingBytes } = adapterFacts(adapter(), language);
  assert.deepEqual([name, maxBufferBytes, maxBindingBytes], ['maker chip', 1024, 512]);
  assert.ok(features.includes('shader-f16') && features.includes('packed_4x8_integer_dot_product'));
  assert.ok(!features.includes('depth-clip-control'));
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
