/**
 * Attention alone on the GPU at hand: the rows of the table that serve Qwen3-30B-A3B's heads with a cache of f16, against
 * plain f64 and by the device's clock, with bounds checks and without:
 *
 *     node bench/attention.ts [--plain] [--small]
 *
 * `--plain` takes the rows that need no feature of the device; `--small` is for software devices. What fits a machine
 * without this checkout: `npx esbuild bench/attention.ts --bundle --platform=node --format=esm --external:webgpu`.
 */

import { PAGE_ROWS } from '../src/backend/backend.ts';
import { type Binding, Builder, type Dispatch, type RunShape } from '../src/backend/gpu/builder.ts';
import { adapterFacts, Gpu, requestAdapter } from '../src/backend/gpu/device.ts';
import { gpuRows } from '../src/backend/gpu/rows.ts';
import { stepLayout, writeStep } from '../src/backend/gpu/step-buffer.ts';
import type { Mode } from '../src/backend/kernel.ts';
import type { AttentionOperation } from '../src/model/graph.ts';
import type { ModelSpec } from '../src/model/spec.ts';
import { select } from '../src/plan/select.ts';
import { openDawn } from '../src/platform/dawn.ts';

const small = process.argv.includes('--small');
const heads = small ? 8 : 32;
const kvHeads = small ? 1 : 4;
const dim = small ? 32 : 128;
const width = heads * dim;
/** So many that their caches together are more than a device's own cache holds. */
const LAYERS = small ? 2 : 8;
const MODEL_LAYERS = 48;
const PROMPTS = small ? [96] : [512, 2048];
const CONTEXTS = small ? [100, 400] : [64, 512, 2048, 8192, 32768];
const STEPS = [1, 2, 4, 8];
const ROWS = Math.max(...PROMPTS);
const CONTEXT = Math.ceil(Math.max(ROWS, ...CONTEXTS) / PAGE_ROWS + 1) * PAGE_ROWS;
const PAGES = CONTEXT / PAGE_ROWS + 8;
const USAGE = 0x80 | 0x8 | 0x4;

/** xorshift: the same values wherever it runs. */
let state = 7;
function uniform(): number {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) / 2 ** 32;
}
const normals = Float32Array.from({ length: 1 << 20 }, () => (uniform() + uniform() + uniform() - 1.5) * 2);
const normal = (i: number) => normals[(i * 7 + (i >> 20) * 1237) & (normals.length - 1)] as number;

const query = Float32Array.from({ length: ROWS * width }, (_, i) => 2 * normal(i));
const cacheValues = PAGES * PAGE_ROWS * kvHeads * dim;
const keys = new Float16Array(cacheValues).map((_, i) => normal(i + 3));
const values = new Float16Array(cacheValues).map((_, i) => normal(3 * i + 1));
const table = Int32Array.from({ length: CONTEXT / PAGE_ROWS }, (_, i) => (i * 37 + 5) % PAGES);

const truths = new Map<string, Float64Array>();
/** Attention of a row of the queries at a position, in f64: [heads · dim]. */
function truth(row: number, position: number): Float64Array {
  const known = truths.get(`${row} ${position}`);
  if (known !== undefined) return known;
  const out = new Float64Array(width);
  const scores = new Float64Array(position + 1);
  for (let head = 0; head < heads; head++) {
    const kvHead = Math.floor(head / (heads / kvHeads));
    const start = (at: number) =>
      (((table[Math.floor(at / PAGE_ROWS)] as number) * kvHeads + kvHead) * PAGE_ROWS + (at % PAGE_ROWS)) * dim;
    let top = -Infinity;
    for (let at = 0; at <= position; at++) {
      const [q, k] = [(row * heads + head) * dim, start(at)];
      let score = 0;
      for (let i = 0; i < dim; i++) score += (query[q + i] as number) * (keys[k + i] as number);
      scores[at] = score / Math.sqrt(dim);
      top = Math.max(top, scores[at] as number);
    }
    let sum = 0;
    for (let at = 0; at <= position; at++) {
      const weight = Math.exp((scores[at] as number) - top);
      const v = start(at);
      sum += weight;
      for (let i = 0; i < dim; i++) (out[head * dim + i] as number) += weight * (values[v + i] as number);
    }
    for (let i = 0; i < dim; i++) (out[head * dim + i] as number) /= sum;
  }
  truths.set(`${row} ${position}`, out);
  return out;
}

function relativeRms(found: Float32Array, expected: readonly Float64Array[]): string {
  let [error, size] = [0, 0];
  expected.forEach((row, r) => {
    for (let i = 0; i < width; i++) {
      error += ((found[r * width + i] as number) - (row[i] as number)) ** 2;
      size += (row[i] as number) ** 2;
    }
  });
  return Math.sqrt(error / size).toExponential(1);
}

/** What keeps a device at its full clock before each measurement, and shows that it was. */
const spin = /* wgsl */ `
override turns: u32;
@group(0) @binding(0) var<storage, read_write> sink: array<f32>;
@compute @workgroup_size(128) fn main(@builtin(global_invocation_id) id: vec3u) {
  var x = sink[id.x & 1023u];
  for (var i = 0u; i < turns; i++) { x = fma(x, 0.99f, 0.001f); x = fma(x, 0.98f, 0.002f); }
  sink[id.x & 1023u] = x;
}`;

class Bench {
  readonly #device: GPUDevice;
  readonly #dispatches: Readonly<Record<Mode, readonly Dispatch[]>>;
  readonly #buffers = new Map<string, GPUBuffer>();
  readonly #builder: Builder;
  readonly #pipelines = new Map<string, Promise<GPUComputePipeline>>();

  constructor(device: GPUDevice, features: ReadonlySet<string>) {
    this.#device = device;
    const graph = { operations: [], widths: { query: width, output: width }, logits: 'output', hidden: [] };
    const given = { spec: {} as ModelSpec, graph, weights: new Map(), cacheType: 'f16', features } as const;
    this.#builder = new Builder({ ...given, promptRows: ROWS, wanted: 64, context: CONTEXT });
    for (const mode of ['prompt', 'step'] as const) {
      for (let layer = 0; layer < LAYERS; layer++) {
        const shape = { heads, kvHeads, headDim: dim, valueDim: dim, scale: 1 / Math.sqrt(dim), stored: true } as const;
        const names = { query: 'query', key: 'key', value: 'value', output: 'output' };
        const operation: AttentionOperation = { kind: 'attention', layer, ...names, ...shape };
        const row = select(gpuRows, { operation, mode, rows: ROWS, weights: {}, widths: {}, cache: 'f16', features });
        if (layer === 0) console.log(`  ${mode}: ${row.name}`);
        row.emit(operation, this.#builder, mode);
      }
    }
    this.#dispatches = this.#builder.dispatches;
  }

  #buffer(name: string, bytes: number, data?: ArrayBufferView<ArrayBuffer>): GPUBuffer {
    let buffer = this.#buffers.get(name);
    if (buffer === undefined) {
      buffer = this.#device.createBuffer({ size: Math.ceil(bytes / 16) * 16, usage: USAGE });
      if (data !== undefined) {
        const plain = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        this.#device.queue.writeBuffer(buffer, 0, plain);
      }
      this.#buffers.set(name, buffer);
    }
    return buffer;
  }

  #bound(binding: Binding): GPUBuffer {
    if (binding.kind === 'step') return this.#buffer('step', this.#builder.step.words * 4);
    if (binding.kind === 'cache') {
      const data = binding.part === 'keys' ? keys : values;
      return this.#buffer(`${binding.part} ${binding.layer}`, data.byteLength, data);
    }
    const { name } = binding as { readonly name: string };
    if (name === 'query') return this.#buffer(name, query.byteLength, query);
    return this.#buffer(name, this.#builder.bytes.get(name) ?? 4);
  }

  #pipeline(code: string, constants: Record<string, number> = {}): Promise<GPUComputePipeline> {
    const key = JSON.stringify([code, constants]);
    let pipeline = this.#pipelines.get(key);
    if (pipeline === undefined) {
      const module = this.#device.createShaderModule({ code });
      pipeline = this.#device.createComputePipelineAsync({ layout: 'auto', compute: { module, constants } });
      this.#pipelines.set(key, pipeline);
    }
    return pipeline;
  }

  async #encode(pass: GPUComputePassEncoder, dispatches: readonly Dispatch[], run: RunShape): Promise<void> {
    for (const { code, bindings, workgroups } of dispatches) {
      const count = workgroups(run);
      if (count.includes(0)) continue;
      const pipeline = await this.#pipeline(code);
      const entries = bindings.map((binding, i) => ({ binding: i, resource: { buffer: this.#bound(binding) } }));
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, this.#device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
      pass.dispatchWorkgroups(...count);
    }
  }

  /** The first rows of the queries at positions from `first` on, in every layer: the output of the last, and µs a layer. */
  async run(mode: Mode, first: number, rows: number): Promise<{ readonly output: Float32Array; readonly us: number }> {
    const device = this.#device;
    const layout = stepLayout(this.#builder.rows, 64, CONTEXT);
    const words = new Uint32Array(layout.words);
    const [tokens, sequences, wanted] = [new Int32Array(rows), new Int32Array(rows), new Int32Array(0)];
    const positions = tokens.map((_, row) => first + row);
    writeStep({ mode, tokens, positions, sequences, wanted, pageTables: [table] }, layout, words);
    device.queue.writeBuffer(this.#buffer('step', words.byteLength), 0, words);
    const warm = await this.#pipeline(spin, { turns: small ? 10 : 300_000 });
    const sink = { binding: 0, resource: { buffer: this.#buffer('sink', 4096) } };
    let us = Infinity;
    for (let attempt = 0; attempt < 4; attempt++) {
      const encoder = device.createCommandEncoder();
      const heat = encoder.beginComputePass();
      heat.setPipeline(warm);
      heat.setBindGroup(0, device.createBindGroup({ layout: warm.getBindGroupLayout(0), entries: [sink] }));
      heat.dispatchWorkgroups(128);
      heat.end();
      const querySet = device.createQuerySet({ type: 'timestamp', count: 2 });
      const timestampWrites = { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
      const pass = encoder.beginComputePass({ timestampWrites });
      await this.#encode(pass, this.#dispatches[mode], { rows, wanted: 0, visible: first + rows });
      pass.end();
      const resolved = device.createBuffer({ size: 16, usage: 0x200 | 0x4 });
      encoder.resolveQuerySet(querySet, 0, 2, resolved, 0);
      device.queue.submit([encoder.finish()]);
      const [begin, end] = new BigUint64Array((await this.#read(resolved, 16)).buffer) as unknown as [bigint, bigint];
      us = Math.min(us, Number(end - begin) / 1000 / LAYERS);
      for (const used of [querySet, resolved]) used.destroy();
    }
    return { output: await this.#read(this.#buffer('output', 4), rows * width * 4), us };
  }

  async #read(source: GPUBuffer, bytes: number): Promise<Float32Array<ArrayBuffer>> {
    const staging = this.#device.createBuffer({ size: bytes, usage: 0x1 | 0x8 });
    const encoder = this.#device.createCommandEncoder();
    encoder.copyBufferToBuffer(source, 0, staging, 0, bytes);
    this.#device.queue.submit([encoder.finish()]);
    await staging.mapAsync(0x1);
    const result = new Float32Array(staging.getMappedRange().slice(0));
    staging.destroy();
    return result;
  }
}

for (const unchecked of [true, false]) {
  const platform = { gpu: openDawn };
  const adapter = await requestAdapter(platform, { unchecked });
  const facts = adapterFacts(adapter, (await openDawn({ unchecked }))?.wgslLanguageFeatures);
  console.log(`${facts.name}, ${unchecked ? 'without' : 'with'} bounds checks`);
  const gpu = await Gpu.open(platform, { unchecked });
  const bench = new Bench(gpu.device, new Set(process.argv.includes('--plain') ? [] : facts.features));
  for (const rows of PROMPTS) {
    const { output, us } = await bench.run('prompt', 0, rows);
    const sample = [0, 1, 7, 8, 63, 64, 65, rows >> 1, rows - 1];
    const found = Float32Array.from(sample.flatMap((row) => [...output.subarray(row * width, (row + 1) * width)]));
    const error = relativeRms(
      found,
      sample.map((row) => truth(row, row)),
    );
    const teraflops = (2 * width * rows * rows) / us / 1e6;
    const all = (us * MODEL_LAYERS) / 1000;
    console.log(
      `  prompt of ${rows}: ${us.toFixed(1)} µs a layer, ${all.toFixed(2)} ms for ${MODEL_LAYERS}, ${teraflops.toFixed(1)} TFLOP/s, relative RMS ${error}`,
    );
  }
  for (const context of CONTEXTS) {
    const figures: string[] = [];
    let error = '';
    for (const rows of STEPS) {
      const { output, us } = await bench.run('step', context - 1, rows);
      figures.push(us.toFixed(2));
      if (context <= 8192) error = relativeRms(output, [truth(0, context - 1)]);
    }
    console.log(
      `  step at ${context}, ${STEPS.join(', ')} rows: ${figures.join(', ')} µs a layer${error && `, relative RMS ${error}`}`,
    );
  }
  gpu.check();
  gpu.close();
}
process.exit(0);
