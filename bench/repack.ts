/**
 * The kernels that put weights into planes, by the device's clock, for a layer of Qwen3-30B-A3B's experts in every format,
 * and whether what they make is what the host makes:
 *
 *     node bench/repack.ts [--small]
 *
 * `--small` is for software devices. What fits a machine without this checkout:
 * `npx esbuild bench/repack.ts --bundle --platform=node --format=esm --external:webgpu`.
 */

import { cpuFormat, groupBytes } from '../src/backend/cpu/formats.ts';
import { adapterFacts, Gpu, requestAdapter } from '../src/backend/gpu/device.ts';
import { gpuFormats } from '../src/backend/gpu/formats/index.ts';
import { type GpuFormat, planeWords, toPlanes } from '../src/backend/gpu/formats.ts';
import { Repacker, type RepackJob, type SourceLayout } from '../src/backend/gpu/repack.ts';
import { openDawn } from '../src/platform/dawn.ts';
import { formatOf } from '../src/quant/index.ts';

const small = process.argv.includes('--small');
const EXPERTS = small ? 2 : 128;
const [HIDDEN, INNER] = small ? [512, 256] : [2048, 768];
const MB = 1e6;
const STORAGE = 0x80 | 0x8 | 0x4;

const platform = { gpu: openDawn };
const adapter = await requestAdapter(platform, { unchecked: true });
console.log(`${adapterFacts(adapter).name}; Node ${process.version}, ${process.arch}`);
console.log(`features: ${[...adapter.features].join(' ')}`);
console.log(`largest buffer ${adapter.limits.maxBufferSize}, binding ${adapter.limits.maxStorageBufferBindingSize}`);
const gpu = await Gpu.open(platform, { unchecked: true });
const { device } = gpu;

const rate = (bytes: number, elapsedMs: number) => `${(bytes / elapsedMs / 1e6).toFixed(2)} GB/s`;

async function submit(fill: (encoder: GPUCommandEncoder) => void): Promise<void> {
  const encoder = device.createCommandEncoder();
  fill(encoder);
  device.queue.submit([encoder.finish()]);
  await device.queue.onSubmittedWorkDone();
}

/** Milliseconds, by the device's clock, of what `fill` records, once of so many times. */
async function deviceMs(count: number, fill: (encoder: GPUCommandEncoder) => void): Promise<number> {
  const querySet = device.createQuerySet({ type: 'timestamp', count: 4 });
  const stamp = (encoder: GPUCommandEncoder, first: number) => {
    const timestampWrites = { querySet, beginningOfPassWriteIndex: first, endOfPassWriteIndex: first + 1 };
    encoder.beginComputePass({ timestampWrites }).end();
  };
  const resolved = device.createBuffer({ size: 32, usage: 0x200 | 0x4 });
  await submit((encoder) => {
    // At its full clock when the time is taken.
    for (let i = 0; i < count; i++) fill(encoder);
    stamp(encoder, 0);
    for (let i = 0; i < count; i++) fill(encoder);
    stamp(encoder, 2);
    encoder.resolveQuerySet(querySet, 0, 4, resolved, 0);
  });
  const stamps = new BigUint64Array((await read(resolved, 0, 32)).buffer);
  for (const used of [querySet, resolved]) used.destroy();
  return Number((stamps[2] as bigint) - (stamps[1] as bigint)) / 1e6 / count;
}

/** Rows of the file as the CPU's groups hold them, plainly. */
function inGroups(id: string, columns: number, file: Uint8Array): Uint8Array {
  const size = groupBytes(id, columns);
  const rowBytes = size / 4;
  const target = new Uint8Array(Math.ceil(file.length / size) * size);
  const { blockBytes } = formatOf(id);
  for (let row = 0; row < file.length / rowBytes; row++) {
    const group = Math.floor(row / 4) * size;
    for (let block = 0; block < rowBytes; block += blockBytes) {
      let at = block;
      for (const [bytes, unit] of cpuFormat(id)?.segments ?? []) {
        for (const end = at + bytes; at < end; at += unit) {
          const from = row * rowBytes + at;
          target.set(file.subarray(from, from + unit), group + 4 * at + (row % 4) * unit);
        }
      }
    }
  }
  return target;
}

async function read(buffer: GPUBuffer, at: number, size: number): Promise<Uint8Array<ArrayBuffer>> {
  const staging = device.createBuffer({ size, usage: 0x1 | 0x8 });
  await submit((encoder) => encoder.copyBufferToBuffer(buffer, at, staging, 0, size));
  await staging.mapAsync(0x1);
  const bytes = new Uint8Array(staging.getMappedRange().slice(0));
  staging.destroy();
  return bytes;
}

/** The kernel alone: 128 matrices of one kind at once. The first and the last matrix are held to the host's planes. */
async function kernel(format: GpuFormat, layout: SourceLayout): Promise<string> {
  const kind = { format: format.id, columns: HIDDEN };
  const repacker = await Repacker.make(gpu, [kind], layout);
  const bytes = repacker.sourceBytes({ ...kind, rows: INNER });
  const planes = planeWords(format, HIDDEN).rowWords * 4 * INNER;
  const raw = device.createBuffer({ size: bytes * EXPERTS, usage: STORAGE });
  const target = device.createBuffer({ size: planes * EXPERTS, usage: STORAGE });
  const file = new Uint8Array(bytes).map((_, i) => Math.imul(i, 2654435761) >>> 13);
  const held = layout === 'groups' ? inGroups(format.id, HIDDEN, file) : file;
  for (let expert = 0; expert < EXPERTS; expert++) {
    device.queue.writeBuffer(raw, expert * bytes, Uint8Array.from(held));
  }
  const jobs = Array.from(
    { length: EXPERTS },
    (_, expert): RepackJob => ({ ...kind, rows: INNER, source: expert * bytes, target, targetOffset: expert * planes }),
  );
  const each = await deviceMs(small ? 2 : 20, (encoder) => repacker.encode(encoder, { raw, jobs }));
  const expected = new Uint8Array(planes);
  toPlanes(format, HIDDEN, file, expected);
  let right = true;
  for (const expert of [0, EXPERTS - 1]) {
    right &&= Buffer.compare(await read(target, expert * planes, planes), expected) === 0;
  }
  for (const buffer of [raw, target]) buffer.destroy();
  repacker.destroy();
  const all = bytes * EXPERTS;
  return `${rate(all, each)} (${(all / MB).toFixed(0)} MB in ${each.toFixed(3)} ms${right ? '' : '; WRONG'})`;
}

console.log('bytes of the source a second (as many are written):');
for (const format of gpuFormats) {
  console.log(`  ${format.id}: groups ${await kernel(format, 'groups')}; rows ${await kernel(format, 'rows')}`);
}

gpu.check();
gpu.close();
process.exit(0);
