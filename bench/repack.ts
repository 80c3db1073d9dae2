/**
 * How fast experts get from the CPU's memory into planes on the GPU at hand: the kernels that make planes, the host's copies
 * into staging memory by several ways, and all of it together, for experts of Qwen3-30B-A3B's shape:
 *
 *     node bench/repack.ts [--small]
 *
 * `--small` is for software devices. What fits a machine without this checkout:
 * `npx esbuild bench/repack.ts --bundle --platform=node --format=esm --external:webgpu`.
 */

import { cpuFormat, groupBytes } from '../src/backend/cpu/formats.ts';
import { adapterFacts, Gpu, requestAdapter } from '../src/backend/gpu/device.ts';
import { gpuFormat, gpuFormats } from '../src/backend/gpu/formats/index.ts';
import { type GpuFormat, planeWords, toPlanes } from '../src/backend/gpu/formats.ts';
import { Repacker, type RepackJob, type SourceLayout } from '../src/backend/gpu/repack.ts';
import { openDawn } from '../src/platform/dawn.ts';
import { formatOf } from '../src/quant/index.ts';

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
console.log(`features: ${[...adapter.features].join(' ')}`);
console.log(`largest buffer ${adapter.limits.maxBufferSize}, binding ${adapter.limits.maxStorageBufferBindingSize}`);
const gpu = await Gpu.open(platform, { unchecked: true });
const { device } = gpu;

const ms = (since: number) => performance.now() - since;
const rate = (bytes: number, elapsedMs: number) => `${(bytes / elapsedMs / 1e6).toFixed(2)} GB/s`;

async function submit(fill: (encoder: GPUCommandEncoder) => void): Promise<number> {
  const start = performance.now();
  const encoder = device.createCommandEncoder();
  fill(encoder);
  device.queue.submit([encoder.finish()]);
  await device.queue.onSubmittedWorkDone();
  return ms(start);
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

async function read(buffer: GPUBuffer, at: number, size: number): Promise<Uint8Array> {
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
  const file = new Uint8Array(host).slice(12345, 12345 + bytes);
  const held = layout === 'groups' ? inGroups(format.id, HIDDEN, file) : file;
  for (let expert = 0; expert < EXPERTS; expert++) {
    device.queue.writeBuffer(raw, expert * bytes, Uint8Array.from(held));
  }
  const jobs = Array.from(
    { length: EXPERTS },
    (_, expert): RepackJob => ({ ...kind, rows: INNER, source: expert * bytes, target, targetOffset: expert * planes }),
  );
  const times = (count: number) =>
    submit((encoder) => {
      for (let i = 0; i < count; i++) repacker.encode(encoder, { raw, jobs });
    });
  await times(2);
  const [one, many] = small ? [1, 2] : [2, 22];
  let each = Infinity;
  for (let i = 0; i < ROUNDS; i++) each = Math.min(each, (-(await times(one)) + (await times(many))) / (many - one));
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

console.log('\nkernel, bytes of the source a second (as many are written):');
for (const format of gpuFormats) {
  console.log(`  ${format.id}: groups ${await kernel(format, 'groups')}; rows ${await kernel(format, 'rows')}`);
}

/** From byte `from` of the host's memory to byte `at` of a buffer. */
type Copy = (target: ArrayBuffer, at: number, from: number, bytes: number) => void;
const copies: Readonly<Record<string, Copy>> = {
  'Uint8Array.set': (target, at, from, bytes) => new Uint8Array(target, at).set(new Uint8Array(host, from, bytes)),
  'Float64Array.set': (target, at, from, bytes) =>
    new Float64Array(target, at).set(new Float64Array(host, from, bytes / 8)),
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
  const start = performance.now();
  new Uint8Array(mapped).slice(0, 2 ** 18);
  console.log(`  ${(bytes / MB).toFixed(2)} MB, reading mapped memory back: ${rate(2 ** 18, ms(start))}`);
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

{
  const staging = device.createBuffer({ size: layerBytes, usage: 0x2 | 0x4 });
  const copy = (count: number) =>
    submit((encoder) => {
      for (let i = 0; i < count; i++) encoder.copyBufferToBuffer(staging, 0, raw, 0, layerBytes);
    });
  await copy(1);
  const each = ((await copy(5)) - (await copy(1))) / 4;
  console.log(`  the bus alone, staging to device: ${rate(layerBytes, each)}`);
  staging.destroy();
}

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

/** Ring of mapped buffers, each for `experts` of them; without a ring each is made mapped and given up. */
function mappedWay(experts: number, ring: number | undefined, name: string): Way {
  const copy = copies[name] as Copy;
  const size = experts * expertBytes;
  const make = () => device.createBuffer({ size, usage: 0x2 | 0x4, mappedAtCreation: true });
  const buffers = Array.from({ length: ring ?? 0 }, () => ({
    buffer: make(),
    mapped: Promise.resolve() as Promise<unknown>,
  }));
  return {
    name: ring === undefined ? `made mapped each time, ${name}` : `${ring} mapped in turn, ${name}`,
    experts,
    async run(spent) {
      const old: GPUBuffer[] = [];
      for (let first = 0, turn = 0; first < EXPERTS; first += experts, turn++) {
        const count = Math.min(experts, EXPERTS - first);
        const slot = ring === undefined ? undefined : buffers[turn % ring];
        const start = performance.now();
        await slot?.mapped;
        spent.waitMs += ms(start);
        const staging = slot?.buffer ?? timed(spent, 'callMs', make);
        timed(spent, 'copyMs', () => fillExperts(staging, first, count, copy));
        timed(spent, 'callMs', () => {
          staging.unmap();
          finish(first, count, staging);
          if (slot === undefined) old.push(staging);
          else slot.mapped = staging.mapAsync(0x2);
        });
      }
      const start = performance.now();
      await device.queue.onSubmittedWorkDone();
      spent.waitMs += ms(start);
      for (const staging of old) staging.destroy();
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

console.log('  all together (ms: copies, calls into Dawn, waiting):');
for (const make of [
  ...[1, 4, 12].flatMap((experts) => [2, 4, 8].map((ring) => () => mappedWay(experts, ring, 'Buffer.copy'))),
  ...[1, 12].map((experts) => () => mappedWay(experts, 4, 'Uint8Array.set')),
  ...[1, 12].map((experts) => () => mappedWay(experts, undefined, 'Buffer.copy')),
  ...[1, 12].map((experts) => () => writeWay(experts)),
]) {
  const way = make();
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
    const parts = [spent.copyMs, spent.callMs, spent.waitMs].map((part) => part.toFixed(1));
    line = `${rate(layerBytes, all)}, ${all.toFixed(1)} ms (${parts.join(', ')})`;
  }
  console.log(`  ${way.experts} experts a submission, ${way.name}: ${line}`);
}
{
  const staging = device.createBuffer({ size: 4096, usage: 0x2 | 0x4 });
  const waits: number[] = [];
  for (let i = 0; i < 50; i++) {
    await submit((encoder) => encoder.copyBufferToBuffer(staging, 0, raw, 0, 4096));
    const start = performance.now();
    await staging.mapAsync(0x2);
    waits.push(ms(start));
    staging.unmap();
  }
  waits.sort((a, b) => a - b);
  console.log(`  mapAsync of an idle buffer: ${((waits[25] as number) * 1000).toFixed(0)} µs`);
}
gpu.check();
gpu.close();
process.exit(0);
