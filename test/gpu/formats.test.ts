/** Every weight format's WGSL decoder against the reference's values, on the device. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, describe, test } from 'node:test';
import { gpuFormats } from '../../src/backend/gpu/formats/index.ts';
import { type GpuFormat, oneWeightCode, planeWords, toPlanes, weightCode } from '../../src/backend/gpu/formats.ts';
import { weightHelpers } from '../../src/backend/gpu/wgsl.ts';
import { formatOf, formats } from '../../src/quant/index.ts';
import { closeGpuTestDevice, runOnGpu } from '../support/gpu.ts';
import { f32Of, readSafetensors, tensorOf } from '../support/safetensors.ts';

const folder = new URL('../fixtures/quant/', import.meta.url);
const index = JSON.parse(readFileSync(new URL('index.json', folder), 'utf8')) as readonly {
  readonly name: string;
}[];

after(closeGpuTestDevice);

function vectorsOf(id: string) {
  const name = index.find((row) => row.name.toUpperCase() === id)?.name;
  assert.ok(name, `index.json has no type ${id}`);
  return readSafetensors(new URL(`${name}.safetensors`, folder));
}

/** Decodes block `x` of row `y` into `out` [rows, blocks · 32]. */
function kernel(blocks: number, decode: string, rowWords: string): string {
  return /* wgsl */ `
@group(0) @binding(1) var<storage, read_write> out: array<vec4f>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3u) {
  let values = ${decode}(id.y * ${rowWords}, id.x);
  for (var i = 0u; i < 8u; i++) { out[(id.y * ${blocks}u + id.x) * 8u + i] = values[i]; }
}`;
}

/** [rows, columns up to whole blocks of 32], as the device decodes them. */
async function decodeOnGpu(format: GpuFormat, bytes: Uint8Array, rows: number, columns: number): Promise<Float32Array> {
  const planes = new Uint8Array(rows * planeWords(format, columns).rowWords * 4);
  toPlanes(format, columns, bytes, planes);
  const blocks = Math.ceil(columns / 32);
  const code = oneWeightCode({ format, columns, binding: 0 }) + kernel(blocks, 'decode32', 'ROW_WORDS');
  const [out] = await runOnGpu(code, [{ read: planes }, { write: rows * blocks * 128 }], [blocks, rows, 1]);
  return new Float32Array(out as ArrayBuffer);
}

/**
 * Bit for bit, but that NaN is NaN whatever its bits, and that a device may make zero of a subnormal scale: then values
 * below 2^-123 (the largest E2M1 value, 6, at such a scale) are lost.
 */
function differences(found: Float32Array, expected: Float32Array): string {
  assert.equal(found.length, expected.length);
  const lines: string[] = [];
  expected.forEach((want, i) => {
    const got = found[i] as number;
    const lost = Math.abs(want) < 2 ** -123 && got === 0;
    if (!Object.is(got, want) && !lost && lines.length < 5) lines.push(`value ${i}: found ${got}, expected ${want}`);
  });
  return lines.join('\n');
}

function referenceOf(id: string, bytes: Uint8Array): Float32Array<ArrayBuffer> {
  const { blockBytes, blockLength, decode } = formatOf(id);
  const blocks = bytes.length / blockBytes;
  const values = new Float32Array(blocks * blockLength);
  decode(bytes, 0, values, 0, blocks);
  return values;
}

test('the GPU reads every format that there is', () => {
  assert.deepEqual(gpuFormats.map(({ id }) => id).sort(), formats.map(({ id }) => id).sort());
});

for (const format of gpuFormats) {
  describe(format.id, () => {
    const tensors = vectorsOf(format.id);
    for (const [bytesName, floatsName] of [
      ['bytes', 'floats'],
      ['random_bytes', 'random_floats'],
    ] as const) {
      test(`decodes ${bytesName} to ${floatsName}, bit for bit`, async () => {
        const { bytes } = tensorOf(tensors, bytesName, 'U8');
        const expected = f32Of(tensors, floatsName);
        for (const rows of [expected.length / 512, 2]) {
          const found = await decodeOnGpu(format, bytes, rows, expected.length / rows);
          assert.equal(differences(found, expected), '', `${rows} rows`);
        }
      });
    }
  });
}

test('a row of an odd number of blocks is read to its end and not beyond', async () => {
  for (const format of gpuFormats) {
    const { blockBytes, blockLength } = formatOf(format.id);
    const columns = Math.max(32, blockLength) * 3;
    const { bytes } = tensorOf(vectorsOf(format.id), 'random_bytes', 'U8');
    const some = bytes.slice(0, 2 * (columns / blockLength) * blockBytes);
    const found = await decodeOnGpu(format, some, 2, columns);
    assert.equal(differences(found, referenceOf(format.id, some)), '', format.id);
  }
});

test('columns beyond a ragged row are zero', async () => {
  for (const format of gpuFormats.filter(({ id }) => formatOf(id).blockLength === 1)) {
    for (const columns of [1, 7, 31, 33, 47, 60]) {
      const { bytes } = tensorOf(vectorsOf(format.id), 'bytes', 'U8');
      const some = bytes.slice(0, 3 * columns * formatOf(format.id).blockBytes);
      const values = referenceOf(format.id, some);
      const wide = Math.ceil(columns / 32) * 32;
      const expected = new Float32Array(3 * wide);
      for (let row = 0; row < 3; row++) {
        expected.set(values.subarray(row * columns, (row + 1) * columns), row * wide);
      }
      const found = await decodeOnGpu(format, some, 3, columns);
      assert.equal(differences(found, expected), '', `${format.id} of ${columns} columns`);
    }
  }
});

test('every scale of MXFP4 and of NVFP4 means what the formats say', async () => {
  for (const [id, scales] of [
    ['MXFP4', 1],
    ['NVFP4', 4],
    ['NVFP4_32', 2],
  ] as const) {
    const { blockBytes, blockLength } = formatOf(id);
    const blocks = 256 / scales;
    const bytes = new Uint8Array(blocks * blockBytes);
    for (let i = 0; i < 256; i++) bytes[Math.floor(i / scales) * blockBytes + (i % scales)] = i;
    for (let at = 0; at < bytes.length; at++) {
      if (at % blockBytes >= scales) bytes[at] = (at % blockBytes) * 0x1f;
    }
    const format = gpuFormats.find((known) => known.id === id) as GpuFormat;
    const found = await decodeOnGpu(format, bytes, 2, (blocks * blockLength) / 2);
    assert.equal(differences(found, referenceOf(id, bytes)), '', id);
  }
});

test('the smallest f16 scales are not lost', async () => {
  for (const bits of [0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x7bff]) {
    for (const id of ['F16', 'Q4_0', 'Q8_0']) {
      const { blockBytes, blockLength } = formatOf(id);
      const bytes = new Uint8Array((64 / blockLength) * blockBytes).map((_, i) => i * 37);
      for (let at = 0; at < bytes.length; at += blockBytes) {
        bytes[at] = bits & 255;
        bytes[at + 1] = bits >> 8;
      }
      const format = gpuFormats.find((known) => known.id === id) as GpuFormat;
      const found = await decodeOnGpu(format, bytes, 1, 64);
      assert.equal(differences(found, referenceOf(id, bytes)), '', `${id} with scale ${bits.toString(16)}`);
    }
  }
});

test('two weights of different formats and widths live in one module', async () => {
  const sum = gpuFormats.map((format) => {
    const other = gpuFormats[(gpuFormats.indexOf(format) + 5) % gpuFormats.length] as GpuFormat;
    return [format, other] as const;
  });
  for (const [first, second] of sum) {
    const [a, b] = [first, second].map((format) => {
      const { blockBytes, blockLength } = formatOf(format.id);
      const { bytes } = tensorOf(vectorsOf(format.id), 'bytes', 'U8');
      const columns = format === first ? 256 : 512;
      const some = bytes.slice(0, (columns / blockLength) * blockBytes);
      const planes = new Uint8Array(planeWords(format, columns).rowWords * 4);
      toPlanes(format, columns, some, planes);
      return { planes, values: referenceOf(format.id, some) };
    }) as [
      { planes: Uint8Array<ArrayBuffer>; values: Float32Array },
      { planes: Uint8Array<ArrayBuffer>; values: Float32Array },
    ];
    const code = `${weightHelpers}
${weightCode({ format: first, columns: 256, binding: 0, name: 'a' })}
${weightCode({ format: second, columns: 512, binding: 1, name: 'b' })}
@group(0) @binding(2) var<storage, read_write> out: array<vec4f>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3u) {
  let x = decode32_a(0u, id.x);
  let y = decode32_b(0u, id.x + 8u);
  for (var i = 0u; i < 8u; i++) { out[id.x * 16u + i] = x[i]; out[id.x * 16u + 8u + i] = y[i]; }
}`;
    const [out] = await runOnGpu(code, [{ read: a.planes }, { read: b.planes }, { write: 8 * 256 }], [8, 1, 1]);
    const found = new Float32Array(out as ArrayBuffer);
    const expected = new Float32Array(512);
    for (let block = 0; block < 8; block++) {
      expected.set(a.values.subarray(32 * block, 32 * block + 32), 64 * block);
      expected.set(b.values.subarray(256 + 32 * block, 256 + 32 * block + 32), 64 * block + 32);
    }
    assert.equal(differences(found, expected), '', `${first.id} with ${second.id}`);
  }
});
