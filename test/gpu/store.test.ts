/** Weights on the device: a source that says where it repeats gives the same bytes as one that does not. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { deviceBytes } from '../../src/backend/gpu/layout.ts';
import { ownThread, PlanePool } from '../../src/backend/gpu/plane-pool.ts';
import { storeOnGpu } from '../../src/backend/gpu/store.ts';
import { SourceError } from '../../src/errors.ts';
import { openModelFile } from '../../src/format/open.ts';
import { type ByteSource, memorySource, type Repetition } from '../../src/format/source.ts';
import { readModel } from '../../src/model/read-model.ts';
import type { Weights } from '../../src/model/weights.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { formatBytes } from '../../src/quant/index.ts';
import { syntheticModel } from '../../src/synthetic/source.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';

after(closeGpuTestDevice);

/** Every weight's bytes on the device, after storing from `source`. */
async function stored(weights: Weights, source: ByteSource, planes = ownThread): Promise<Map<string, Uint8Array>> {
  const gpu = await gpuTestDevice();
  const { device } = gpu;
  const usage = GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
  const buffers = new Map(
    [...weights].map(([name, weight]) => [name, device.createBuffer({ size: deviceBytes(weight), usage })]),
  );
  await gpu.guarded(() => storeOnGpu({ weights, sources: [source] }, gpu, { buffers, planes }));
  const read = new Map<string, Uint8Array>();
  for (const [name, buffer] of buffers) {
    const { size } = buffer;
    const staging = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, staging, 0, size);
    device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    read.set(name, new Uint8Array(staging.getMappedRange().slice(0)));
    for (const made of [buffer, staging]) made.destroy();
  }
  return read;
}

test('what repeats is read once and copied on the device, to the bytes that reading all of it gives', async () => {
  const file = await openModelFile(syntheticModel('tiny-moe'));
  const { weights } = readModel(file);
  const [synthetic] = file.sources as [ByteSource];
  const bytes = new Uint8Array(synthetic.size);
  await synthetic.readInto(0, bytes);
  // Periods of whole rows, of part of a row, of more than half of the tensor, and a tensor that repeats in part only.
  const repeats: Repetition[] = [];
  let saved = 0;
  for (const [index, tensor] of [...file.tensors.values()].entries()) {
    const [rows = 1] = tensor.shape;
    if (rows < 100 && tensor.shape.length < 3) continue;
    const rowBytes = formatBytes(tensor.format, tensor.shape.at(-1) as number);
    const period = [37 * rowBytes, rowBytes, 5 * rowBytes + 2, Math.ceil((tensor.bytes * 2) / 3 / rowBytes) * rowBytes][
      index % 4
    ] as number;
    const range = { offset: tensor.offset, bytes: index % 5 === 4 ? tensor.bytes - rowBytes : tensor.bytes, period };
    for (let at = range.offset + period; at < range.offset + range.bytes; at++)
      bytes[at] = bytes[at - period] as number;
    repeats.push(range);
    if (period % rowBytes === 0 && range.bytes === tensor.bytes) saved += tensor.bytes - period;
  }
  assert.ok(saved > 1e6, `only ${saved} bytes repeat by whole rows`);
  await sameBothWays({ weights, bytes, repeats, saved });
});

test('a weight of several pieces', async () => {
  const [rows, columns, periodRows] = [3000, 2048, 301];
  const period = 4 * columns * periodRows;
  const values = new Float32Array(rows * columns);
  for (let i = 0; i < values.length; i++)
    values[i] = i < periodRows * columns ? i : (values[i - periodRows * columns] as number);
  const part = { name: 'w', format: 'F32', shape: [rows, columns], source: 0, offset: 0, bytes: values.byteLength };
  await sameBothWays({
    weights: new Map([['w', { ...part, parts: [part] }]]),
    bytes: new Uint8Array(values.buffer),
    repeats: [{ offset: 0, bytes: values.byteLength, period }],
    saved: values.byteLength - period,
  });
});

test('planes that workers make are those that this thread makes', async () => {
  const file = await openModelFile(syntheticModel('tiny-moe'));
  const { weights } = readModel(file);
  const [source] = file.sources as [ByteSource];
  const pool = new PlanePool(nodePlatform, 2);
  try {
    const made = await stored(weights, source, pool);
    for (const [name, expected] of await stored(weights, source)) {
      assert.equal(Buffer.compare(made.get(name) as Uint8Array, expected), 0, name);
    }
  } finally {
    await pool.close();
  }
});

test('a load that cannot read a piece reads nothing after those in work', async () => {
  const shape = [12_000, 2048];
  const bytes = 4 * 12_000 * 2048;
  const part = { name: 'w', format: 'F32', shape, source: 0, offset: 0, bytes };
  let reads = 0;
  const source: ByteSource = {
    name: 'torn',
    size: bytes,
    async readInto() {
      if (++reads === 2) throw new SourceError('torn: the second read failed');
    },
    async close() {},
  };
  const loading = stored(new Map([['w', { ...part, parts: [part] }]]), source);
  await assert.rejects(loading, (error) => error instanceof SourceError && /second read/.test(error.message));
  const gpu = await gpuTestDevice();
  for (let turn = 0; turn < 10; turn++) await gpu.device.queue.onSubmittedWorkDone();
  assert.equal(reads, ownThread.piecesAtOnce);
});

async function sameBothWays(given: {
  readonly weights: Weights;
  readonly bytes: Uint8Array;
  readonly repeats: readonly Repetition[];
  /** Bytes that need not be read. */
  readonly saved: number;
}): Promise<void> {
  const { weights, bytes, repeats, saved } = given;
  const source = memorySource(bytes);
  let bytesRead = 0;
  const counting: ByteSource = {
    ...source,
    readInto(offset, target) {
      bytesRead += target.byteLength;
      return source.readInto(offset, target);
    },
  };
  const plain = await stored(weights, counting);
  const plainRead = bytesRead;
  bytesRead = 0;
  const copied = await stored(weights, { ...counting, repeats });
  assert.equal(bytesRead, plainRead - saved);
  for (const [name, expected] of plain) assert.equal(Buffer.compare(copied.get(name) as Uint8Array, expected), 0, name);
}
