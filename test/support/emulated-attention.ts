/**
 * Attention on subgroup matrices where a device has none: the kernels' text with each matrix operation and each exchange
 * between lanes written out in f32, for subgroups of 32. A lane owns eight values of a row of a result. Layout of memory,
 * masks, order of pages and barriers are the kernels' own.
 */

import assert from 'node:assert/strict';
import type { Step } from '../../src/backend/backend.ts';
import { PAGE_ROWS } from '../../src/backend/backend.ts';
import { type Binding, Builder } from '../../src/backend/gpu/builder.ts';
import type { GpuRow } from '../../src/backend/gpu/row.ts';
import { writeStep } from '../../src/backend/gpu/step-buffer.ts';
import type { AttentionOperation, RotateOperation } from '../../src/model/graph.ts';
import { type Inputs, type Shape, sequences } from '../conformance/support/attention-cases.ts';
import { bytesOf, type Tiny } from '../conformance/support/tiny-graph.ts';
import { gpuTestDevice } from './gpu.ts';

const functions = (code: string) => {
  const threads = Number(/@workgroup_size\((\d+)\)/.exec(code)?.[1]);
  // What of the cache a kernel does not bind it does not load from.
  const half = (name: string) =>
    new RegExp(`> ${name}: array<vec4u`).test(code) ? `${name}[at][e / 2u]` : 'memory[at][e / 2u]';
  const matrices = /* wgsl */ `
alias Row = array<f32, 16>;
alias Eight = array<f32, 8>;
struct Right { place: u32, byColumns: bool, at: u32, stride: u32 }
fn rounded(x: vec4f) -> vec4f { return vec4f(unpack2x16float(pack2x16float(x.xy)), unpack2x16float(pack2x16float(x.zw))); }
fn packed(x: vec4f) -> vec2u { return vec2u(pack2x16float(x.xy), pack2x16float(x.zw)); }
fn halfAt(place: u32, at: u32, e: u32) -> f32 {
  var word = 0u;
  if (place == 0u) { word = memory[at][e / 2u]; }
  if (place == 1u) { word = ${half('keys')}; }
  return unpack2x16float(word)[e % 2u];
}
fn rowOf(at: u32, stride: u32, lane: u32) -> Row {
  var row = Row();
  for (var k = 0u; k < 16u; k++) { row[k] = halfAt(0u, at + lane / 2u * stride + k / 8u, k % 8u); }
  return row;
}
fn multiplied(a: Row, b: Right, sum: Eight, lane: u32) -> Eight {
  var result = sum;
  for (var e = 0u; e < 8u; e++) {
    let n = lane % 2u * 8u + e;
    for (var k = 0u; k < 16u; k++) {
      let outer = select(k, n, b.byColumns);
      let inner = select(n, k, b.byColumns);
      result[e] += a[k] * halfAt(b.place, b.at + outer * b.stride + inner / 8u, inner % 8u);
    }
  }
  return result;
}
fn stored(at: u32, values: Eight, stride: u32, lane: u32) {
  let place = at + lane / 2u * stride + lane % 2u * 2u;
  memory[place] = bitcast<vec4u>(vec4f(values[0], values[1], values[2], values[3]));
  memory[place + 1u] = bitcast<vec4u>(vec4f(values[4], values[5], values[6], values[7]));
}
fn loaded(at: u32, stride: u32, lane: u32) -> Eight {
  let place = at + lane / 2u * stride + lane % 2u * 2u;
  let a = bitcast<vec4f>(memory[place]);
  let b = bitcast<vec4f>(memory[place + 1u]);
  return Eight(a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w);
}`;
  return `${code.includes('memory') ? matrices : ''}
${code.includes('exchanged(') ? exchange(threads) : ''}`;
};

const exchange = (threads: number) => /* wgsl */ `
var<workgroup> exchange: array<f32, ${threads}>;
fn exchanged(value: f32, mask: u32, thread: u32) -> f32 {
  exchange[thread] = value;
  workgroupBarrier();
  let other = exchange[thread ^ mask];
  workgroupBarrier();
  return other;
}`;

const rewrites: readonly (readonly [from: RegExp, to: string])[] = [
  [/^(enable|diagnostic).*\n/gm, ''],
  [/\n {2}@builtin\(subgroup_(id|invocation_id)\) \w+: u32,/g, ''],
  [/subgroupId %/g, 'thread / 32u %'],
  [/invocation %/g, 'thread %'],
  [/subgroup_matrix_result<f32, 16, 16>\(\)/g, 'Eight()'],
  [
    /subgroupMatrixLoad<subgroup_matrix_left<.*?>, row_major>\(&memory, ([^,]*), (\w+)\)/g,
    'rowOf($1, $2, thread % 32u)',
  ],
  [
    /subgroupMatrixLoad<subgroup_matrix_result<.*?>, row_major>\(&memory, ([^,]*), (\w+)\)/g,
    'loaded($1, $2, thread % 32u)',
  ],
  [/subgroupMatrixLoad<subgroup_matrix_right<.*?>, row_major>\(&memory, (.*), (\w+)\)/g, 'Right(0u, false, $1, $2)'],
  [/subgroupMatrixLoad<subgroup_matrix_right<.*?>, col_major>\(&memory, (.*), (\w+)\)/g, 'Right(0u, true, $1, $2)'],
  [/subgroupMatrixLoad<subgroup_matrix_right<.*?>, col_major>\(&keys, (.*), (\w+)\)/g, 'Right(1u, true, $1, $2)'],
  [/subgroupMatrixStore<row_major>\(&memory, (.*), (\w+), (\w+)\)/g, 'stored($1, $2, $3, thread % 32u)'],
  [/(subgroupMatrixMultiplyAccumulate\([^;]*, \w+)\);/g, '$1, thread % 32u);'],
  [/subgroupMatrixMultiplyAccumulate/g, 'multiplied'],
  [/bitcast<vec2u>\(/g, 'packed('],
  [/vec4<f16>/g, 'rounded'],
];

/** Throws where something of the text needs what it stands in for. */
export function emulated(code: string): string {
  if (!/subgroup/.test(code)) return code;
  let text = rewrites.reduce((changed, [from, to]) => changed.replace(from, to), code);
  // Any device's subgroups have four lanes; who exchanges with those alone needs no memory for it, of which there is little.
  const four = !/subgroupShuffleXor\([\w.]+, (4|8|16)u\)/.test(text);
  if (!four) text = text.replace(/subgroupShuffleXor\(([\w.]+), (\w+)\)/g, 'exchanged($1, $2, thread)');
  for (const left of ['f16>', 'subgroupMatrix', 'subgroup_'])
    assert.ok(!text.includes(left), `${left} has no stand-in`);
  return `${four ? 'enable subgroups;\n' : ''}${text.replace('@compute', `${functions(text)}\n@compute`)}`;
}

export interface EmulatedAttention {
  readonly rows: { readonly prompt: GpuRow; readonly step: GpuRow };
  readonly tiny: Tiny;
  readonly inputs: Inputs;
  readonly shape: Shape;
  readonly context: number;
  readonly pages: number;
  /** Queries and keys that are turned first: the inputs, side by side, are the operation's input. */
  readonly turned?: {
    readonly rotate: RotateOperation;
    readonly row: GpuRow;
    /** Norms, and angles as `{ kind: 'rope' }` binds them. */
    readonly weights: Readonly<Record<string, Float32Array<ArrayBuffer>>>;
    readonly angles: Float32Array<ArrayBuffer>;
  };
}

/** A weight that the graph has, as values; undefined for one that it only names. */
function f32WeightOf(tiny: Tiny, name: string): Float32Array<ArrayBuffer> | undefined {
  if (!tiny.weights.has(name)) return undefined;
  return new Float32Array(Uint8Array.from(bytesOf(tiny, name)).buffer);
}

/** Runs the attention of a graph by two rows of the table, whatever they need: its inputs are rows by token, as in the graph. */
export async function emulatedAttention(given: EmulatedAttention): Promise<(step: Step) => Promise<Float32Array>> {
  const { rows, tiny, inputs, shape, context, pages, turned } = given;
  const { heads, kvHeads, headDim, valueDim } = shape;
  const { spec, graph, weights } = tiny;
  const bare = graph.operations.at(-1) as AttentionOperation;
  const operation: AttentionOperation =
    turned === undefined ? bare : { ...bare, query: turned.rotate.output, rotated: turned.rotate };
  const features = new Set<string>();
  const queries = heads * headDim;
  const projected = queries + kvHeads * (headDim + valueDim);
  const more = turned && { [turned.rotate.input]: projected, [turned.rotate.output]: queries };
  const widened = { ...graph, widths: { ...graph.widths, ...more } };
  const made = {
    spec,
    graph: widened,
    weights,
    promptRows: 200,
    wanted: 64,
    context,
    cacheType: 'f16',
    features,
  } as const;
  const builder = new Builder(made);
  for (const mode of ['prompt', 'step'] as const) {
    turned?.row.emit(turned.rotate, builder, mode);
    rows[mode].emit(operation, builder, mode);
  }
  const gpu = await gpuTestDevice();
  const { device } = gpu;
  const widths = { query: heads * headDim, key: kvHeads * headDim, value: kvHeads * valueDim };
  const buffers = new Map<string, GPUBuffer>();
  const bufferOf = (name: string, bytes: number) => {
    let buffer = buffers.get(name);
    if (buffer === undefined) {
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
      buffer = device.createBuffer({ size: Math.ceil(bytes / 16) * 16, usage });
      buffers.set(name, buffer);
    }
    return buffer;
  };
  const heldBuffer = (name: string, values: Float32Array<ArrayBuffer> = new Float32Array(4)) => {
    const buffer = bufferOf(`held ${name}`, values.byteLength);
    device.queue.writeBuffer(buffer, 0, values);
    return buffer;
  };
  const inputWidths: Readonly<Record<string, number>> =
    turned === undefined ? widths : { [turned.rotate.input]: projected };
  const valueBuffer = (name: string) => {
    const width = inputWidths[name];
    return bufferOf(
      `value ${name}`,
      width === undefined ? (builder.bytes.get(name) as number) : builder.rows * width * 4,
    );
  };
  const bound = (binding: Binding): GPUBuffer => {
    if (binding.kind === 'step') return bufferOf('step', builder.step.words * 4);
    if (binding.kind === 'cache') {
      const dim = binding.part === 'keys' ? headDim : valueDim;
      return bufferOf(binding.part, pages * PAGE_ROWS * kvHeads * dim * 2);
    }
    if (binding.kind === 'rope') return heldBuffer('angles', turned?.angles);
    const { name } = binding as { readonly name: string };
    if (binding.kind === 'weight') return heldBuffer(name, turned?.weights[name] ?? f32WeightOf(tiny, name));
    return valueBuffer(name);
  };
  const pipelines = new Map<string, Promise<GPUComputePipeline>>();
  const pipelineOf = (code: string) => {
    let pipeline = pipelines.get(code);
    if (pipeline === undefined) {
      const module = device.createShaderModule({ code: emulated(code) });
      pipeline = device.createComputePipelineAsync({ layout: 'auto', compute: { module, entryPoint: 'main' } });
      pipelines.set(code, pipeline);
    }
    return pipeline;
  };
  return (step) =>
    gpu.guarded(async () => {
      const words = new Uint32Array(builder.step.words);
      writeStep(step, builder.step, words);
      device.queue.writeBuffer(bufferOf('step', words.byteLength), 0, words);
      const row = (name: keyof Inputs, token: number) =>
        inputs[name].subarray(token * widths[name], (token + 1) * widths[name]);
      const rowsOf = (parts: readonly (keyof Inputs)[]) =>
        Float32Array.from([...step.tokens].flatMap((token) => parts.flatMap((part) => [...row(part, token)])));
      const names = ['query', 'key', 'value'] as const;
      const read = turned === undefined ? names.map((name) => [name, rowsOf([name])] as const) : [];
      if (turned !== undefined) read.push([turned.rotate.input as keyof Inputs, rowsOf(names)]);
      for (const [name, values] of read) {
        device.queue.writeBuffer(valueBuffer(name), 0, values);
      }
      const visible = step.positions.reduce((most, position) => Math.max(most, position + 1), 0);
      const alone = new Set(step.sequences).size === step.sequences.length;
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      for (const { code, bindings, workgroups } of builder.dispatches[step.mode]) {
        const count = workgroups({ rows: step.tokens.length, wanted: 0, visible, alone });
        if (count.includes(0)) continue;
        const pipeline = await pipelineOf(code);
        const entries = bindings.map((binding, index) => ({ binding: index, resource: { buffer: bound(binding) } }));
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
        pass.dispatchWorkgroups(...count);
      }
      pass.end();
      const bytes = step.tokens.length * heads * valueDim * 4;
      const staging = device.createBuffer({ size: bytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
      encoder.copyBufferToBuffer(bufferOf(`value ${operation.output}`, bytes), 0, staging, 0, bytes);
      device.queue.submit([encoder.finish()]);
      await staging.mapAsync(GPUMapMode.READ);
      const result = new Float32Array(staging.getMappedRange().slice(0));
      staging.destroy();
      return result;
    });
}

/** Pages that the sequences of the attention suites lie in. */
export const suitePages = 1 + Math.max(11, ...Object.values(sequences).flatMap(({ pages }) => [...pages]));
