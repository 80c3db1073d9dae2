/** Activations as bytes, and their products with every format's codes, on the device. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type Binding, Builder } from '../../src/backend/gpu/builder.ts';
import { gpuFormats } from '../../src/backend/gpu/formats/index.ts';
import { planeWords, toPlanes, weightCode } from '../../src/backend/gpu/formats.ts';
import { int8Helpers } from '../../src/backend/gpu/int8.ts';
import { weightHelpers } from '../../src/backend/gpu/wgsl.ts';
import { formatOf } from '../../src/quant/index.ts';
import { sameBits } from '../conformance/support/compare.ts';
import { tinyGraph } from '../conformance/support/tiny-graph.ts';
import { ENCODED_WORDS, emitEncode, encodedName, encodedReader } from '../support/encode-kernel.ts';
import { closeGpuTestDevice, runOnGpu, type TestBinding } from '../support/gpu.ts';

after(closeGpuTestDevice);

/** Numbers from -1 to 1, the same every time. */
function noise(count: number, seed: number): Float32Array<ArrayBuffer> {
  let state = seed;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  });
}

/** [rows, width] as the encode kernel leaves them: words. */
async function encode(values: Float32Array<ArrayBuffer>, rows: number): Promise<Uint32Array<ArrayBuffer>> {
  const width = values.length / rows;
  const tiny = tinyGraph({ rows, inputs: { x: values }, operations: [], widths: {}, output: 'x' });
  const builder = new Builder({
    ...tiny,
    promptRows: rows,
    wanted: 1,
    context: 64,
    cacheType: 'f16',
    features: new Set(),
  });
  emitEncode(builder, 'step', 'x');
  const [dispatch, ...more] = builder.dispatches.step;
  assert.ok(dispatch !== undefined && more.length === 0);
  const step = new Uint32Array(builder.step.words);
  step[builder.step.rows] = rows;
  const bytes = builder.bytes.get(encodedName('x')) as number;
  const bind = ({ kind }: Binding): TestBinding =>
    kind === 'step' ? { read: step } : kind === 'value' ? { read: values } : { write: bytes };
  const run = { rows: rows + 1, wanted: 0, visible: 1 };
  const [out] = await runOnGpu(dispatch.code, dispatch.bindings.map(bind), dispatch.workgroups(run));
  const words = new Uint32Array(out as ArrayBuffer);
  const used = rows * (width / 32) * ENCODED_WORDS;
  assert.ok(
    words.subarray(used).every((word) => word === 0),
    'rows beyond the run stay as they were',
  );
  return words.slice(0, used);
}

/** What encoded words mean, in order of columns. */
function decoded(words: Uint32Array<ArrayBuffer>): { codes: Int8Array; scales: Float32Array; sums: Float32Array } {
  const blocks = words.length / ENCODED_WORDS;
  const codes = new Int8Array(blocks * 32);
  const scales = new Float32Array(blocks);
  const sums = new Float32Array(blocks * 2);
  const floats = new Float32Array(words.buffer);
  for (let block = 0; block < blocks; block++) {
    const at = block * ENCODED_WORDS;
    codes.set(new Int8Array(words.buffer, at * 4, 32), block * 32);
    scales[block] = floats[at + 8] as number;
    sums.set(floats.subarray(at + 9, at + 11), block * 2);
  }
  return { codes, scales, sums };
}

test('each value is within half a step, the largest is 127 steps, and the sums are of what was written', async () => {
  const values = noise(3 * 96, 7).map((x, i) => x * 10 ** ((i >> 5) - 4));
  const { codes, scales, sums } = decoded(await encode(values, 3));
  values.forEach((value, i) => {
    const scale = scales[i >> 5] as number;
    const code = codes[i] as number;
    assert.ok(Math.abs(code * scale - value) <= scale * 0.50001, `value ${i}: ${value} became ${code} × ${scale}`);
  });
  for (let block = 0; block < 9; block++) {
    const own = codes.subarray(32 * block, 32 * block + 32);
    assert.equal(Math.max(...own.map(Math.abs)), 127, `block ${block}`);
    for (const half of [0, 1]) {
      const sum = own.subarray(16 * half, 16 * half + 16).reduce((total, code) => total + code, 0);
      assert.equal(sums[2 * block + half], Math.fround((scales[block] as number) * sum));
    }
  }
});

test('the largest of each place of a block is found', async () => {
  const values = noise(32 * 32, 3);
  for (let i = 0; i < 32; i++) values[33 * i] = i % 2 === 0 ? -5 : 5;
  const { codes, scales } = decoded(await encode(values, 1));
  for (let i = 0; i < 32; i++) {
    assert.equal(codes[33 * i], i % 2 === 0 ? -127 : 127);
    assert.ok(Math.abs((scales[i] as number) * 127 - 5) < 1e-5);
  }
});

test('zeros and tiny values are zero, large ones are finite, and what is not finite is not lost', async () => {
  const values = new Float32Array(32 * 7);
  values.fill(1e-38, 32, 64);
  values.fill(-3e38, 64, 96);
  values.set([Number.NaN], 96 + 5);
  values.set([Number.POSITIVE_INFINITY], 128 + 31);
  values.set([Number.NEGATIVE_INFINITY], 160);
  values.fill(1, 192, 224);
  const { codes, scales, sums } = decoded(await encode(values, 1));
  assert.ok(codes.subarray(0, 64).every((code) => code === 0));
  assert.ok(sums.subarray(0, 4).every((sum) => sum === 0) && scales.subarray(0, 2).every((scale) => scale < 1e-30));
  assert.ok(codes.subarray(64, 96).every((code) => code === -127));
  assert.ok(Math.abs((scales[2] as number) * 127 - 3e38) < 1e33);
  for (const block of [3, 4, 5]) {
    assert.ok(Number.isNaN(scales[block]), `block ${block}: ${scales[block]}`);
    assert.ok(Number.isNaN(sums[2 * block]) && Number.isNaN(sums[2 * block + 1]));
  }
  assert.ok(codes.subarray(192).every((code) => code === 127));
});

test('a row has the same bits alone and among others', async () => {
  const values = noise(5 * 64, 11);
  const all = await encode(values, 5);
  const words = all.length / 5;
  for (const row of [0, 2, 4]) {
    const alone = await encode(values.slice(row * 64, row * 64 + 64), 1);
    assert.deepEqual(alone, all.slice(row * words, (row + 1) * words));
  }
});

/** [rows, blocks]: products of block b of each weight row with block b of the encoded row. */
async function products(id: string, bytes: Uint8Array, columns: number, words: Uint32Array<ArrayBuffer>) {
  const format = gpuFormats.find((known) => known.id === id);
  assert.ok(format?.codes !== undefined, id);
  const { blockLength, blockBytes } = formatOf(id);
  const blocks = columns / 32;
  const rows = bytes.length / ((columns / blockLength) * blockBytes);
  const planes = new Uint8Array(rows * planeWords(format, columns).rowWords * 4);
  toPlanes(format, columns, bytes, planes);
  const code = /* wgsl */ `${weightHelpers}${int8Helpers}${weightCode({ format, columns, binding: 0 })}
@group(0) @binding(1) var<storage, read> encoded: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
${encodedReader('readBlock', 'encoded')}
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3u) {
  let row = id.y * ROW_WORDS;
  let at = id.y * ${blocks}u + id.x;
  out[at] = dotCodes(codes32(row, id.x), readBlock(id.x));
  // Two blocks in one go are the same codes.
  let first = id.x & ~1u;
  let pair = codesPair(loadsPair(row, first), first);
  var own = pair.first;
  if (id.x != first) { own = pair.second; }
  if (first + 1u < ${blocks}u) { out[${rows * blocks}u + at] = dotCodes(own, readBlock(id.x)); }
}`;
  const [out] = await runOnGpu(
    code,
    [{ read: planes }, { read: words }, { write: 2 * rows * blocks * 4 }],
    [blocks, rows, 1],
  );
  const all = new Float32Array(out as ArrayBuffer);
  const single = all.slice(0, rows * blocks);
  // A last block without a neighbour has no pair.
  const paired = all
    .slice(rows * blocks)
    .map((value, i) => (i % blocks === blocks - 1 && blocks % 2 === 1 ? (single[i] as number) : value));
  sameBits(paired, single, `${id}: two blocks at once`);
  return single;
}

/** Bytes of every pattern whose f16, E8M0 and E4M3 scales are finite and of a common size. */
function weightBytes(id: string, count: number): Uint8Array<ArrayBuffer> {
  const { blockBytes } = formatOf(id);
  const halves: Readonly<Record<string, readonly number[]>> = {
    Q4_1: [0, 2],
    Q5_1: [0, 2],
    Q2_K: [80, 82],
    Q3_K: [108],
    Q4_K: [0, 2],
    Q5_K: [0, 2],
    Q6_K: [208],
    MXFP4: [],
    NVFP4: [],
    NVFP4_32: [],
  };
  const bytes = Uint8Array.from(noise(count * blockBytes, 5), (x) => ((x + 1) * 128) & 255);
  for (let at = 0; at < bytes.length; at += blockBytes) {
    for (const half of halves[id] ?? [0]) bytes[at + half + 1] = ((bytes[at + half + 1] as number) & 0x83) | 0x28;
    if (id === 'MXFP4') bytes[at] = 120 + (at % 9);
    const scales = id === 'NVFP4' ? 4 : id === 'NVFP4_32' ? 2 : 0;
    for (let i = 0; i < scales; i++) bytes[at + i] = (bytes[at + i] as number) & 0x5f;
  }
  return bytes;
}

test('products with every format’s codes are those of the reference’s values with what the bytes mean', async () => {
  for (const { id, codes: has } of gpuFormats) {
    const { blockLength, decode } = formatOf(id);
    // FP8's values are no integers.
    assert.equal(has === undefined, blockLength === 1 || id.startsWith('FP8'), id);
    if (has === undefined) continue;
    const columns = 3 * Math.max(64, blockLength);
    const bytes = weightBytes(id, (4 * columns) / blockLength);
    const weights = new Float32Array(4 * columns);
    decode(bytes, 0, weights, 0, weights.length / blockLength);
    const words = await encode(noise(columns, 9), 1);
    const { codes, scales } = decoded(words);
    const found = await products(id, bytes, columns, words);
    found.forEach((value, i) => {
      const [row, block] = [Math.floor((32 * i) / columns), i % (columns / 32)];
      let expected = 0;
      let size = 0;
      for (let j = 0; j < 32; j++) {
        const at = 32 * block + j;
        const product = (weights[row * columns + at] as number) * (scales[block] as number) * (codes[at] as number);
        expected += product;
        size += Math.abs(product);
      }
      // Scale · code and minimum are rounded apart, and both may be far larger than their difference: so is the unit.
      assert.ok(Math.abs(value - expected) <= 4e-6 * size, `${id}: product ${i} is ${value}, expected ${expected}`);
    });
  }
});

test('a NaN among the activations is in the product, whatever the weight', async () => {
  for (const id of ['Q4_K', 'Q6_K', 'Q8_0', 'MXFP4']) {
    const { blockLength, blockBytes } = formatOf(id);
    const columns = Math.max(64, blockLength);
    const values = noise(columns, 4);
    values[40] = Number.NaN;
    const zero = new Uint8Array((columns / blockLength) * blockBytes);
    const found = await products(id, zero, columns, await encode(values, 1));
    found.forEach((value, block) => {
      assert.equal(Number.isNaN(value), block === 1, `${id}, block ${block}: ${value}`);
    });
  }
});

test('bytes of the lowest value count in full', async () => {
  const bytes = new Uint8Array(2 * 34).fill(0x80);
  bytes.set([0, 0x3c], 0);
  bytes.set([0, 0x3c], 34);
  const words = await encode(new Float32Array(64).fill(-127), 1);
  sameBits(await products('Q8_0', bytes, 64, words), Float32Array.of(32 * 128 * 127, 32 * 128 * 127), 'the product');
});
