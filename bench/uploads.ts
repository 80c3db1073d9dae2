/**
 * How fast a layer of Qwen3-30B-A3B's experts gets from the host's memory into planes on the GPU at hand, by several ways:
 *
 *     UV_THREADPOOL_SIZE=8 node bench/uploads.ts [--small]
 *
 * Node's own threads (4 without the variable) read files. `--small` is for software devices. What fits a machine without this
 * checkout: `npx esbuild bench/uploads.ts --bundle --platform=node --format=esm --external:webgpu`.
 */

import { open, unlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { adapterFacts, Gpu, requestAdapter } from '../src/backend/gpu/device.ts';
import { gpuFormat } from '../src/backend/gpu/formats/index.ts';
import { type GpuFormat, planeWords } from '../src/backend/gpu/formats.ts';
import { Repacker, type RepackJob } from '../src/backend/gpu/repack.ts';
import { openDawn } from '../src/platform/dawn.ts';

const small = process.argv.includes('--small');
const EXPERTS = small ? 2 : 128;
const [HIDDEN, INNER] = small ? [512, 256] : [2048, 768];
const ROUNDS = small ? 1 : 3;
const MB = 1e6;
/** More than the processor's caches hold. */
const HOST_BYTES = small ? 2 ** 24 : 2 ** 31;
const STORAGE = 0x80 | 0x8 | 0x4;

const host = new SharedArrayBuffer(HOST_BYTES);
{
  const pattern = new Uint8Array(1_000_003).map((_, i) => (Math.imul(i, 2654435761) >>> 13) & 255);
  const all = new Uint8Array(host);
  for (let at = 0; at < HOST_BYTES; at += pattern.length) all.set(pattern.subarray(0, HOST_BYTES - at), at);
}

const platform = { gpu: openDawn };
const adapter = await requestAdapter(platform, { unchecked: true });
console.log(`${adapterFacts(adapter).name}; Node ${process.version}, ${process.arch}`);
const gpu = await Gpu.open(platform, { unchecked: true });
const { device } = gpu;

const ms = (since: number) => performance.now() - since;
const rate = (bytes: number, elapsedMs: number) => `${(bytes / elapsedMs / 1e6).toFixed(2)} GB/s`;

/** From byte `from` of the host's memory to byte `at` of a buffer. */
type Copy = (target: ArrayBuffer, at: number, from: number, bytes: number) => void;
const copies: Readonly<Record<string, Copy>> = {
  'Uint8Array.set': (target, at, from, bytes) => new Uint8Array(target, at).set(new Uint8Array(host, from, bytes)),
  'Buffer.copy': (target, at, from, bytes) => void Buffer.from(host, from, bytes).copy(Buffer.from(target, at)),
};
const PIECES = small ? [2 ** 18, 2 ** 20] : [2654208, 8 * 2 ** 20, 32 * 2 ** 20];

console.log('\nhost copies out of shared memory, one thread:');
for (const bytes of PIECES) {
  const staging = device.createBuffer({ size: bytes, usage: 0x2 | 0x4, mappedAtCreation: true });
  const mapped = staging.getMappedRange();
  const plain = new ArrayBuffer(bytes);
  const count = small ? 2 : Math.floor(1.5e9 / bytes);
  for (const [name, copy] of Object.entries(copies)) {
    const figures: string[] = [];
    for (const [what, target, hot] of [
      ['mapped', mapped, false],
      ['mapped, source in cache', mapped, true],
      ['plain', plain, false],
    ] as const) {
      copy(target, 0, 0, bytes);
      const start = performance.now();
      for (let i = 0; i < count; i++) copy(target, 0, hot ? 0 : ((i * bytes) % (HOST_BYTES - bytes + 1)) & ~7, bytes);
      figures.push(`${what} ${rate(bytes * count, ms(start))}`);
    }
    console.log(`  ${(bytes / MB).toFixed(2)} MB, ${name}: ${figures.join(', ')}`);
  }
  staging.destroy();
}

/** An expert's matrices, as three stacks hold them, and where they go. */
const stacks = [
  { format: 'Q4_K', columns: HIDDEN, rows: INNER },
  { format: 'Q4_K', columns: HIDDEN, rows: INNER },
  { format: 'Q4_K', columns: INNER, rows: HIDDEN },
];
const repacker = await Repacker.make(gpu, stacks, 'groups');
const sizes = stacks.map((kind) => repacker.sourceBytes(kind));
const planeSizes = stacks.map(
  ({ format, columns, rows }) => planeWords(gpuFormat(format) as GpuFormat, columns).rowWords * 4 * rows,
);
const expertBytes = sizes.reduce((sum, size) => sum + size, 0);
const expertPlanes = planeSizes.reduce((sum, size) => sum + size, 0);
const layerBytes = expertBytes * EXPERTS;
const raw = device.createBuffer({ size: layerBytes, usage: STORAGE });
const slots = device.createBuffer({ size: expertPlanes * EXPERTS, usage: STORAGE });
console.log(
  `\na layer of ${EXPERTS} experts of ${(expertBytes / MB).toFixed(2)} MB: ${(layerBytes / MB).toFixed(0)} MB`,
);

const jobsOf = (first: number, count: number): RepackJob[] => {
  const jobs: RepackJob[] = [];
  for (let expert = first; expert < first + count; expert++) {
    let source = expert * expertBytes;
    let targetOffset = expert * expertPlanes;
    stacks.forEach((kind, index) => {
      jobs.push({ ...kind, source, target: slots, targetOffset });
      source += sizes[index] as number;
      targetOffset += planeSizes[index] as number;
    });
  }
  return jobs;
};

/** Where an expert's part lies: each stack of a layer by itself, each layer after the last. */
let layer = 0;
const homeOf = (expert: number, part: number) => {
  const before = sizes.slice(0, part).reduce((sum, size) => sum + size, 0) * EXPERTS;
  const layers = Math.floor(HOST_BYTES / layerBytes);
  return (layer % layers) * layerBytes + before + expert * (sizes[part] as number);
};

interface Spent {
  copyMs: number;
  callMs: number;
  waitMs: number;
}

interface Way {
  readonly name: string;
  readonly experts: number;
  readonly run: (spent: Spent) => Promise<void>;
}

const timed = <T>(spent: Spent, part: keyof Spent, what: () => T): T => {
  const start = performance.now();
  const result = what();
  spent[part] += ms(start);
  return result;
};

function finish(first: number, count: number, staging: GPUBuffer | undefined): void {
  const encoder = device.createCommandEncoder();
  if (staging !== undefined) {
    encoder.copyBufferToBuffer(staging, 0, raw, first * expertBytes, count * expertBytes);
  }
  repacker.encode(encoder, { raw, jobs: jobsOf(first, count) });
  device.queue.submit([encoder.finish()]);
}

function fillExperts(staging: GPUBuffer, first: number, count: number, copy: Copy): void {
  const mapped = staging.getMappedRange(0, count * expertBytes);
  let at = 0;
  for (let expert = first; expert < first + count; expert++) {
    sizes.forEach((size, part) => {
      copy(mapped, at, homeOf(expert, part), size);
      at += size;
    });
  }
}

/** Staging buffers in turn, each for `experts` of them, mapped again as soon as it is sent. */
function ringOf(ring: number, experts: number) {
  return Array.from({ length: ring }, () => ({
    buffer: device.createBuffer({ size: experts * expertBytes, usage: 0x2 | 0x4, mappedAtCreation: true }),
    mapped: Promise.resolve() as Promise<unknown>,
  }));
}

type Slot = ReturnType<typeof ringOf>[number];

function send(slot: Slot, first: number, spent: Spent): void {
  timed(spent, 'callMs', () => {
    slot.buffer.unmap();
    finish(first, Math.floor(slot.buffer.size / expertBytes), slot.buffer);
    slot.mapped = slot.buffer.mapAsync(0x2);
  });
}

async function settled(spent: Spent): Promise<void> {
  const start = performance.now();
  await device.queue.onSubmittedWorkDone();
  spent.waitMs += ms(start);
}

function mappedWay(experts: number, ring: number, name: string): Way {
  const copy = copies[name] as Copy;
  const slots = ringOf(ring, experts);
  return {
    name: `${ring} mapped in turn, ${name}`,
    experts,
    async run(spent) {
      for (let first = 0, turn = 0; first < EXPERTS; first += experts, turn++) {
        const slot = slots[turn % ring] as Slot;
        const start = performance.now();
        await slot.mapped;
        spent.waitMs += ms(start);
        timed(spent, 'copyMs', () => fillExperts(slot.buffer, first, experts, copy));
        send(slot, first, spent);
      }
      await settled(spent);
    },
  };
}

const path = join(tmpdir(), `conclave-uploads-${process.pid}`);
const file = await open(path, 'wx+');
for (let at = 0; at < 3 * layerBytes; at += layerBytes) {
  await file.write(new Uint8Array(host, at, layerBytes), 0, layerBytes, at);
}

/** Node's threads read from a file, which the system holds in memory, straight into mapped staging memory. */
function fileWay(experts: number, ring: number): Way {
  const slots = ringOf(ring, experts);
  return {
    name: `${ring} mapped in turn, read from a file by ${process.env.UV_THREADPOOL_SIZE ?? 4} threads`,
    experts,
    async run(spent) {
      let next = 0;
      const lane = async (slot: Slot) => {
        for (let first = next; first < EXPERTS; first = next) {
          next += experts;
          await slot.mapped;
          const mapped = slot.buffer.getMappedRange();
          const reads: Promise<unknown>[] = [];
          timed(spent, 'copyMs', () => {
            for (let expert = first, at = 0; expert < first + experts; expert++) {
              for (const [part, size] of sizes.entries()) {
                const from = homeOf(expert, part) % (3 * layerBytes);
                reads.push(file.read(new Uint8Array(mapped, at, size), 0, size, from));
                at += size;
              }
            }
          });
          await Promise.all(reads);
          send(slot, first, spent);
        }
      };
      await Promise.all(slots.map(lane));
      await settled(spent);
    },
  };
}

function writeWay(experts: number): Way {
  return {
    name: 'writeBuffer from shared memory',
    experts,
    async run(spent) {
      for (let first = 0; first < EXPERTS; first += experts) {
        const count = Math.min(experts, EXPERTS - first);
        timed(spent, 'copyMs', () => {
          let at = first * expertBytes;
          for (let expert = first; expert < first + count; expert++) {
            sizes.forEach((size, part) => {
              // It takes shared memory, as the standard has it, which its types do not say.
              const bytes = new Uint8Array(host, homeOf(expert, part), size) as unknown as Uint8Array<ArrayBuffer>;
              device.queue.writeBuffer(raw, at, bytes);
              at += size;
            });
          }
        });
        timed(spent, 'callMs', () => finish(first, count, undefined));
      }
      const start = performance.now();
      await device.queue.onSubmittedWorkDone();
      spent.waitMs += ms(start);
    },
  };
}

async function report(way: Way): Promise<void> {
  let best = Infinity;
  let line = '';
  for (let round = 0; round <= ROUNDS; round++, layer++) {
    const spent: Spent = { copyMs: 0, callMs: 0, waitMs: 0 };
    const start = performance.now();
    await way.run(spent);
    const all = ms(start);
    // The first warms up.
    if (round === 0 || all >= best) continue;
    best = all;
    const times = Object.values(spent).map((part: number) => part.toFixed(1));
    line = `${rate(layerBytes, all)}, ${all.toFixed(1)} ms (${times.join(', ')})`;
  }
  console.log(`  ${way.experts} experts a submission, ${way.name}: ${line}`);
}

console.log('  all together (ms of this thread: copies, other calls, waiting):');
// Numbers of experts that divide a layer's.
const [few, some, many] = small ? [1, 1, 2] : [1, 4, 16];
for (const make of [
  ...[few, some, many].map((experts) => () => mappedWay(experts, 4, 'Buffer.copy')),
  () => mappedWay(many, 2, 'Buffer.copy'),
  ...[some, many].map((experts) => () => mappedWay(experts, 4, 'Uint8Array.set')),
  ...[few, some, many].map((experts) => () => fileWay(experts, 4)),
  ...[few, some].map((experts) => () => fileWay(experts, 8)),
  ...[few, many].map((experts) => () => writeWay(experts)),
]) {
  await report(make());
}
await file.close();
await unlink(path);
gpu.check();
gpu.close();
process.exit(0);
