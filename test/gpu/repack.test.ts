/** What the device makes of matrices as the CPU stores them, or as the file has them, is what the host makes of the file's. */

import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { cpuFormats, groupBytes } from '../../src/backend/cpu/formats.ts';
import { Gpu } from '../../src/backend/gpu/device.ts';
import { gpuFormat, gpuFormats } from '../../src/backend/gpu/formats/index.ts';
import { type GpuFormat, planeWords } from '../../src/backend/gpu/formats.ts';
import { Repacker, type RepackJob, type SourceLayout, workgroupsOf } from '../../src/backend/gpu/repack.ts';
import { REPACK_THREADS } from '../../src/backend/gpu/repack-code.ts';
import { InternalError } from '../../src/errors.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { formatOf } from '../../src/quant/index.ts';
// Points the Vulkan loader at a driver before Dawn is opened.
import '../support/gpu.ts';
import { inGroups, inPlanes, matrixOf, type Placed } from '../support/matrices.ts';

const opened: Gpu[] = [];
after(() => {
  for (const gpu of opened) gpu.close();
});

async function open(unchecked: boolean): Promise<Gpu> {
  const gpu = await Gpu.open(nodePlatform, { unchecked });
  opened.push(gpu);
  return gpu;
}

const checked = await open(false);
const unchecked = await open(true);

const USAGE = 0x80 | 0x8 | 0x4;
const DIRTY = 0xa5;

async function read(gpu: Gpu, buffer: GPUBuffer): Promise<Uint8Array> {
  const staging = gpu.device.createBuffer({
    size: buffer.size,
    usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
  });
  const encoder = gpu.device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, buffer.size);
  gpu.device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  const bytes = new Uint8Array(staging.getMappedRange().slice(0));
  staging.destroy();
  return bytes;
}

function bufferOf(gpu: Gpu, bytes: Uint8Array): GPUBuffer {
  const buffer = gpu.device.createBuffer({ size: bytes.length, usage: USAGE });
  gpu.device.queue.writeBuffer(buffer, 0, Uint8Array.from(bytes));
  return buffer;
}

/** `bytes` from `at` on, of a multiple of 4 bytes with something before and behind each. */
function withGaps(parts: readonly Uint8Array[]): { readonly all: Uint8Array; readonly at: readonly number[] } {
  const at: number[] = [];
  let end = 16;
  for (const { length } of parts) {
    at.push(end);
    end += Math.ceil(length / 4) * 4 + 16;
  }
  const all = new Uint8Array(end).fill(DIRTY);
  for (const [index, part] of parts.entries()) all.set(part, at[index]);
  return { all, at };
}

/** Puts all matrices, which are of any kinds, into one target at once, and holds them and all that is beside them to the host's. */
async function checkAll(
  gpu: Gpu,
  repacker: Repacker,
  layout: SourceLayout,
  matrices: readonly Placed[],
): Promise<void> {
  const sources = withGaps(matrices.map((each) => (layout === 'groups' ? inGroups(each) : each.bytes)));
  const expected = withGaps(matrices.map(inPlanes));
  const raw = bufferOf(gpu, sources.all);
  const target = bufferOf(gpu, new Uint8Array(expected.all.length).fill(DIRTY));
  const jobs = matrices.map(({ format, columns, rows }, index): RepackJob => {
    const source = sources.at[index] as number;
    return { format: format.id, columns, rows, source, target, targetOffset: expected.at[index] as number };
  });
  await gpu.guarded(() => {
    const encoder = gpu.device.createCommandEncoder();
    repacker.encode(encoder, { raw, jobs });
    gpu.device.queue.submit([encoder.finish()]);
  });
  const found = await read(gpu, target);
  const wrong = found.findIndex((byte, at) => byte !== expected.all[at]);
  if (wrong >= 0) {
    const index = Math.max(
      0,
      expected.at.findLastIndex((at) => at <= wrong),
    );
    const { format, rows, columns } = matrices[index] as Placed;
    const byte = wrong - (expected.at[index] as number);
    assert.fail(`${layout}: byte ${byte} of ${rows} rows of ${columns} columns of ${format.id}, matrix ${index}`);
  }
  assert.equal(found.length, expected.all.length);
  for (const buffer of [raw, target]) buffer.destroy();
}

/** Whole blocks, in even and odd numbers, and of formats without blocks also widths that fill no word. */
function widthsOf(id: string): readonly number[] {
  const { blockLength } = formatOf(id);
  return blockLength === 1 ? [1, 7, 96] : [blockLength, 3 * blockLength, 6 * blockLength];
}

test('both devices store the same formats', () => {
  assert.deepEqual(cpuFormats.map(({ id }) => id).sort(), gpuFormats.map(({ id }) => id).sort());
});

for (const { id } of gpuFormats) {
  describe(id, () => {
    for (const layout of ['groups', 'rows'] as const) {
      test(`from ${layout}: every word is the host's, padding too, and none beside is written`, async () => {
        const kinds = widthsOf(id).map((columns) => ({ format: id, columns }));
        // Full groups, groups that are not, more and fewer rows than a neighbour has.
        const matrices = kinds.flatMap(({ columns }) => [1, 67, 4, 7].map((rows) => matrixOf(id, rows, columns)));
        for (const gpu of [checked, unchecked]) {
          const repacker = await Repacker.make(gpu, kinds, layout);
          await checkAll(gpu, repacker, layout, matrices);
          repacker.destroy();
        }
      });
    }
  });
}

test('matrices of several kinds are done at once, more of one kind than one dispatch takes', async () => {
  const kinds = [
    { format: 'Q4_K', columns: 256 },
    { format: 'Q6_K', columns: 512 },
    { format: 'Q4_K', columns: 512 },
  ];
  const repacker = await Repacker.make(checked, kinds, 'groups');
  const matrices = Array.from({ length: 600 }, (_, index) => {
    const { format, columns } = kinds[index % 5 === 0 ? 1 : index % 7 === 0 ? 2 : 0] as (typeof kinds)[number];
    return matrixOf(format, 1 + (index % 6), columns);
  });
  await checkAll(checked, repacker, 'groups', matrices);
  repacker.destroy();
});

test('a matrix of more workgroups than there are in one direction', async () => {
  const repacker = await Repacker.make(checked, [{ format: 'Q8_0', columns: 1024 }], 'groups');
  // 65,536 threads are one row of workgroups.
  await checkAll(checked, repacker, 'groups', [matrixOf('Q8_0', 1027, 1024), matrixOf('Q8_0', 3, 1024)]);
  repacker.destroy();
});

test('workgroups in two directions have all threads, and not a row of them too many', () => {
  for (const threads of [1, 256, 257, 65536, 65537, 1_000_000, 2 ** 28]) {
    const { x, y } = workgroupsOf(threads);
    assert.ok(x <= 256 && y <= 65535, `${x} · ${y}`);
    assert.ok(x * y * REPACK_THREADS >= threads && (x * y - y) * REPACK_THREADS < threads, `${threads}: ${x} · ${y}`);
  }
});

test('targets and submissions do not mix, however many passes were recorded before', async () => {
  const kinds = [{ format: 'Q4_0', columns: 64 }];
  const repacker = await Repacker.make(checked, kinds, 'rows');
  const { device } = checked;
  const rowBytes = planeWords(gpuFormat('Q4_0') as GpuFormat, 64).rowWords * 4;
  const matrices = Array.from({ length: 4 }, () => matrixOf('Q4_0', 2, 64));
  const { all, at } = withGaps(matrices.map(({ bytes }) => bytes));
  const raw = bufferOf(checked, all);
  const targets = matrices.map(() => bufferOf(checked, new Uint8Array(2 * rowBytes)));
  const jobs = targets.map((target, index) => ({
    ...{ format: 'Q4_0', columns: 64, rows: 2, target, targetOffset: 0 },
    source: at[index] as number,
  }));
  await checked.guarded(() => {
    // Round the ring and on, with one encoder left open over the recording of another.
    for (let round = 0; round < 700; round++) {
      const first = device.createCommandEncoder();
      const second = device.createCommandEncoder();
      repacker.encode(first, { raw, jobs: jobs.slice(0, 2) });
      repacker.encode(second, { raw, jobs: jobs.slice(2) });
      device.queue.submit([first.finish(), second.finish()]);
    }
  });
  for (const [index, target] of targets.entries()) {
    assert.deepEqual(await read(checked, target), inPlanes(matrices[index] as Placed), `target ${index}`);
  }
  for (const buffer of [raw, ...targets]) buffer.destroy();
  repacker.destroy();
});

test('a job that does not lie within its buffers, or of a kind without a kernel, is refused', async () => {
  const repacker = await Repacker.make(checked, [{ format: 'Q8_0', columns: 64 }], 'groups');
  const job = { format: 'Q8_0', columns: 64, rows: 5, source: 0, targetOffset: 0 };
  const size = repacker.sourceBytes(job);
  assert.equal(size, 2 * groupBytes('Q8_0', 64));
  const planes = 5 * planeWords(gpuFormat('Q8_0') as GpuFormat, 64).rowWords * 4;
  const raw = checked.device.createBuffer({ size: size + 4, usage: USAGE });
  const target = checked.device.createBuffer({ size: planes + 4, usage: USAGE });
  const encode = (more: Partial<RepackJob>) => {
    repacker.encode(checked.device.createCommandEncoder(), { raw, jobs: [{ ...job, target, ...more }] });
  };
  encode({});
  encode({ source: 4, targetOffset: 4 });
  for (const wrong of [
    { source: 8 },
    { source: 2 },
    { source: -4 },
    { targetOffset: 8 },
    { targetOffset: 1 },
    { rows: 9 },
  ]) {
    assert.throws(() => encode(wrong), InternalError, JSON.stringify(wrong));
  }
  for (const wrong of [{ columns: 32 }, { format: 'Q4_0' }]) {
    assert.throws(() => encode(wrong), InternalError, JSON.stringify(wrong));
  }
  await assert.rejects(Repacker.make(checked, [{ format: 'Q4_K', columns: 64 }], 'groups'), InternalError);
  for (const buffer of [raw, target]) buffer.destroy();
  repacker.destroy();
});
