/** Runs the dispatches that a builder collected, over buffers of the test's own. */

import assert from 'node:assert/strict';
import { type Binding, Builder } from '../../src/backend/gpu/builder.ts';
import { gpuFormat } from '../../src/backend/gpu/formats/index.ts';
import { planeWords, toPlanes } from '../../src/backend/gpu/formats.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import type { Weight } from '../../src/model/weights.ts';
import type { FormatId } from '../../src/quant/index.ts';
import { decoded, randomWeight } from '../conformance/support/blocks.ts';
import { tinyGraph } from '../conformance/support/tiny-graph.ts';
import { gpuTestDevice } from './gpu.ts';

/** By the name of a value, buffer or weight: what it holds before; others are zero. */
export type Held = Readonly<Record<string, ArrayBufferView<ArrayBuffer>>>;

export interface ProgramRun {
  readonly rows: number;
  readonly held: Held;
  /** The value or buffer that is read back. */
  readonly output: string;
  /** What becomes of a kernel's text before it is compiled. */
  readonly rewrite?: (code: string) => string;
}

const pipelines = new Map<string, Promise<GPUComputePipeline>>();

/** The output as f32, after every dispatch of a run. Pipelines of equal text are compiled once for the process. */
export async function runProgram(builder: Builder, mode: Mode, run: ProgramRun): Promise<Float32Array> {
  const { rows, held, output, rewrite = (code) => code } = run;
  const gpu = await gpuTestDevice();
  const { device } = gpu;
  return gpu.guarded(async () => {
    const buffers = new Map<string, GPUBuffer>();
    const step = new Uint32Array(builder.step.words);
    step[builder.step.rows] = rows;
    const bufferOf = (binding: Binding): GPUBuffer => {
      const name = binding.kind === 'step' ? 'step' : (binding as { readonly name: string }).name;
      const key = binding.kind === 'weight' ? `weight ${name}` : name;
      let buffer = buffers.get(key);
      if (buffer === undefined) {
        const bytes = binding.kind === 'step' ? step : held[name];
        const size = Math.max(16, bytes?.byteLength ?? 0, builder.bytes.get(name) ?? 0);
        buffer = device.createBuffer({
          size: Math.ceil(size / 16) * 16,
          usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC,
        });
        if (bytes !== undefined) {
          device.queue.writeBuffer(buffer, 0, bytes.buffer, bytes.byteOffset, bytes.byteLength);
        }
        buffers.set(key, buffer);
      }
      return buffer;
    };
    const encoder = device.createCommandEncoder();
    for (const dispatch of builder.dispatches[mode]) {
      const [x, y, z] = dispatch.workgroups({ rows, wanted: 0, visible: rows });
      if (x * y * z === 0) continue;
      const code = rewrite(dispatch.code);
      if (!pipelines.has(code)) {
        const module = device.createShaderModule({ code, label: dispatch.label });
        const compute = { module, entryPoint: 'main' };
        pipelines.set(code, device.createComputePipelineAsync({ layout: 'auto', compute }));
      }
      const pipeline = await (pipelines.get(code) as Promise<GPUComputePipeline>);
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      const entries = dispatch.bindings.map((each, binding) => ({ binding, resource: { buffer: bufferOf(each) } }));
      pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
      pass.dispatchWorkgroups(x, y, z);
      pass.end();
    }
    const source = buffers.get(output) as GPUBuffer;
    const staging = device.createBuffer({
      size: source.size,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
    encoder.copyBufferToBuffer(source, 0, staging, 0, source.size);
    device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    const bytes = staging.getMappedRange().slice(0);
    for (const buffer of [staging, ...buffers.values()]) buffer.destroy();
    return new Float32Array(bytes);
  });
}

/** A weight of random blocks. */
export interface DeviceWeight {
  readonly weight: Weight;
  /** As the device has it. */
  readonly planes: Uint8Array<ArrayBuffer>;
  readonly values: Float32Array;
}

export function deviceWeight(name: string, format: FormatId, shape: readonly number[]): DeviceWeight {
  const columns = shape.at(-1) as number;
  const rows = shape.slice(0, -1).reduce((product, n) => product * n, 1);
  const file = randomWeight(format, rows * columns, rows + columns);
  const layout = gpuFormat(format);
  assert.ok(layout !== undefined);
  const planes = new Uint8Array(rows * planeWords(layout, columns).rowWords * 4);
  toPlanes(layout, columns, file, planes);
  return {
    weight: { name, format, shape, parts: [], bytes: file.length },
    planes,
    values: decoded(format, file),
  };
}

/** A builder for dispatches that a test emits itself. */
export function builderOf(
  rows: number,
  weights: readonly DeviceWeight[],
  widths: Readonly<Record<string, number>>,
  features: readonly string[] = [],
): Builder {
  const { spec: model, graph } = tinyGraph({
    rows: 1,
    inputs: { unused: new Float32Array(1) },
    operations: [],
    widths,
    output: 'y',
  });
  return new Builder({
    graph,
    spec: model,
    weights: new Map(weights.map(({ weight }) => [weight.name, weight])),
    promptRows: rows,
    wanted: 1,
    context: 64,
    cacheType: 'f32',
    features: new Set(features),
  });
}

export const heldOf = (weights: readonly DeviceWeight[]): Held =>
  Object.fromEntries(weights.map(({ weight, planes }) => [weight.name, planes]));
