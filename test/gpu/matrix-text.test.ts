/**
 * The kernels of subgroup matrices are valid WGSL: no device here runs them, so a Dawn without one (its null backend, which
 * claims every feature) checks the text of every format and every tile of the tables.
 */

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { create, globals } from 'webgpu';
import { Builder } from '../../src/backend/gpu/builder.ts';
import { gpuFormats } from '../../src/backend/gpu/formats/index.ts';
import { matrixRows } from '../../src/backend/gpu/kernels/matrix.ts';
import { moeMatrixRows } from '../../src/backend/gpu/kernels/moe-prompt-matrix.ts';
import type { Operation } from '../../src/model/graph.ts';
import type { MoeSpec } from '../../src/model/spec.ts';
import type { Weight } from '../../src/model/weights.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { spec } from '../conformance/support/moe-cases.ts';
import { tinyGraph } from '../conformance/support/tiny-graph.ts';

/** Dawn ends the process if what `create` returns is collected. */
const opened: { dawn?: GPU; device?: GPUDevice } = {};

before(async () => {
  Object.assign(globalThis, globals);
  opened.dawn = create(['backend=null', 'enable-dawn-features=allow_unsafe_apis']);
  const adapter = await opened.dawn.requestAdapter();
  assert.ok(adapter !== null);
  const requiredFeatures = ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'];
  opened.device = await adapter.requestDevice({ requiredFeatures: requiredFeatures as GPUFeatureName[] });
});

after(() => opened.device?.destroy());

async function check(operation: Operation, format: FormatId): Promise<void> {
  const weight = (name: string, shape: readonly number[], own = format): Weight => {
    return { name, format: own, shape, parts: [], bytes: 0 };
  };
  const stack = (part: string) => weight(`m.${part}`, [16, 512, 512]);
  const one = (part: string) => weight(`m.shared.${part}`, [512, 512]);
  const weights = [
    ...['a', 'b'].map((name) => weight(name, [512, 512])),
    ...['gate', 'up', 'down'].flatMap((part) => [stack(part), one(part)]),
    weight('m.router', [16, 512], 'F32'),
    ...['gateScale', 'outputScale'].map((name) => weight(`m.${name}`, [16], 'F32')),
    weight('m.shared.router', [1, 512], 'F32'),
    ...['bias', 'norm'].map((name) => weight(name, [512], 'F32')),
    ...['gate', 'up', 'down'].map((part) => weight(`m.${part}.bias`, [16 * 512], 'F32')),
    weight('m.router.bias', [16], 'F32'),
  ];
  const { spec: model, graph } = tinyGraph({
    rows: 1,
    inputs: { unused: new Float32Array(1) },
    operations: [],
    widths: { x: 512, add: 1024, y: operation.kind === 'project' ? 1024 : 512 },
    output: 'y',
  });
  const builder = new Builder({
    graph,
    spec: model,
    weights: new Map(weights.map((each) => [each.name, each])),
    // So many that every tile of the tables serves some runs.
    promptRows: 65536,
    wanted: 1,
    context: 64,
    cacheType: 'f16',
    features: new Set(),
  });
  const row = [...matrixRows, ...moeMatrixRows].find((each) => each.operation === operation.kind);
  row?.emit(operation, builder, 'prompt');
  const texts = builder.dispatches.prompt.map(({ code }) => code);
  assert.ok(texts.filter((code) => code.includes('subgroupMatrixMultiplyAccumulate')).length >= 2);
  const device = opened.device as GPUDevice;
  for (const code of texts) {
    device.pushErrorScope('validation');
    const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
    await device.popErrorScope();
    const said = messages.map(({ lineNum, message }) => `${message}: ${code.split('\n')[lineNum - 1]}`);
    assert.deepEqual(said, []);
  }
}

const base = { layer: 0, input: 'x', output: 'y' } as const;
const norm = { weight: 'norm', epsilon: 1e-6 };
const parts = [{ weight: 'a', bias: 'bias' }, { weight: 'b' }];
const moe = spec(16, 2, 512, { shared: { inner: 512, gated: true } });
/** With all that may be done to products. */
const adjusted: MoeSpec = {
  ...moe,
  biases: true,
  activation: { kind: 'clampedSwiglu', alpha: 1.702, limit: 7 },
  router: { gating: 'sigmoid', selectionBias: false, normalise: false, scale: 1, bias: true, weighsInput: true },
};

describe('texts for subgroup matrices', () => {
  for (const { id } of gpuFormats.filter(({ id }) => !/^(F32|BF16|FP8)/.test(id))) {
    test(id, async () => {
      await check({ ...base, kind: 'linear', weight: 'a', bias: 'bias' }, id);
      await check({ ...base, kind: 'project', parts, norm, add: 'add' }, id);
      await check({ ...base, kind: 'gated', gate: 'a', up: 'b', activation: 'silu', norm }, id);
      await check({ ...base, kind: 'moe', prefix: 'm', moe }, id);
      if (id.startsWith('NVFP4')) await check({ ...base, kind: 'moe', prefix: 'm', moe: { ...moe, scaled: true } }, id);
      if (id !== 'MXFP4') return;
      await check({ ...base, kind: 'moe', prefix: 'm', moe: adjusted }, id);
      await check({ ...base, kind: 'gated', gate: 'a', up: 'b', activation: 'geluTanh', norm }, id);
    });
  }
});
