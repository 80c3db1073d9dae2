/**
 * What lies in a slot is the expert that was brought there, word for word, from whichever feed; and no memory is taken away from
 * those who read into it, whatever fails.
 */

import assert from 'node:assert/strict';
import { mkdtemp, rm, truncate, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, suite, test } from 'node:test';
import { type CarrierOptions, ExpertCarrier } from '../../src/backend/gpu/expert-carrier.ts';
import { type ExpertMatrix, MemoryFeed } from '../../src/backend/gpu/expert-feed.ts';
import type { FeedChoice, FeedName } from '../../src/backend/gpu/feed-choice.ts';
import { FileFeed } from '../../src/backend/gpu/file-feed.ts';
import type { Placing } from '../../src/backend/gpu/residency.ts';
import { EXPERT_PARTS, expertName, type Slab, slabWeight } from '../../src/backend/gpu/slab.ts';
import { Staging } from '../../src/backend/gpu/staging.ts';
import { DisposedError, InternalError, SourceError } from '../../src/errors.ts';
import type { LocalFile } from '../../src/format/source.ts';
import type { Weight } from '../../src/model/weights.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { inGroups, inPlanes, matrixOf, type Placed } from '../support/matrices.ts';

const EXPERTS = 5;
const LAYERS = [3, 4];
const slabs: readonly Slab[] = [{ layers: LAYERS, slots: 6, passing: 4 }];
const SLOTS = 10;
/** Groups that are not full, and in the file no whole number of words. */
const kinds = { gate: ['Q4_K', 6, 256], up: ['Q4_K', 6, 256], down: ['Q4_0', 7, 32] } as const;

const matrices = new Map<string, Placed>();
const keyOf = ({ layer, part, expert }: ExpertMatrix) => `${layer} ${part} ${expert}`;
const groups = new Map<string, Uint8Array>();

let folder: string;
const gpu = await gpuTestDevice();
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'conclave-'));
});
after(async () => {
  await rm(folder, { recursive: true });
  await closeGpuTestDevice();
});

/** Of the second layer each expert is a tensor of its own. */
function makeModel(): { readonly bytes: Uint8Array; readonly weights: ReadonlyMap<string, Weight> } {
  const weights = new Map<string, Weight>();
  const file: Uint8Array[] = [];
  let end = 1;
  for (const layer of LAYERS) {
    for (const part of EXPERT_PARTS) {
      const [format, rows, columns] = kinds[part];
      const name = expertName(layer, part);
      const own = Array.from({ length: EXPERTS }, (_, expert) => {
        const matrix = matrixOf(format, rows, columns);
        matrices.set(keyOf({ layer, part, expert }), matrix);
        groups.set(keyOf({ layer, part, expert }), inGroups(matrix));
        return matrix.bytes;
      });
      const each = own[0]?.length ?? 0;
      const count = layer === LAYERS[0] ? 1 : EXPERTS;
      const tensors = Array.from({ length: count }, (_, tensor) => {
        const shape = [EXPERTS / count, rows, columns];
        const bytes = (each * EXPERTS) / count;
        return { name, format, shape, source: 0, offset: end + tensor * bytes, bytes };
      });
      file.push(...own);
      weights.set(name, { name, format, shape: [EXPERTS, rows, columns], parts: tensors, bytes: each * EXPERTS });
      end += each * EXPERTS;
    }
  }
  return { bytes: Buffer.concat([Uint8Array.of(0), ...file]), weights };
}

const { bytes: fileBytes, weights } = makeModel();

const memory = () =>
  new MemoryFeed({
    home: (layer, part, expert) => groups.get(keyOf({ layer, part, expert })) as Uint8Array,
    copyBytes: nodePlatform.copyBytes,
  });

async function openFile(name: string): Promise<LocalFile> {
  const path = join(folder, name);
  await writeFile(path, fileBytes);
  return (await nodePlatform.openSource(path)).file as LocalFile;
}

const feedOf = (source: LocalFile) => FileFeed.open({ weights, sources: [source], layers: LAYERS }, nodePlatform);

/** A choice that is made beforehand, over and over. */
function choosing(...names: readonly FeedName[]): FeedChoice {
  let at = 0;
  return { next: () => names[at++ % names.length] as FeedName, learn() {} };
}

interface World {
  readonly carrier: ExpertCarrier;
  /** Holds a slot to the expert that must be in it. */
  check(placings: readonly Placing[]): Promise<void>;
}

/** Of a staging buffer that all experts go through at once. */
const TOGETHER_BYTES = 2 ** 20;

async function withCarrier(
  options: Pick<CarrierOptions, 'choice' | 'onFileFault' | 'stagingBytes'> & { readonly file?: FileFeed | undefined },
  use: (world: World) => Promise<void>,
): Promise<void> {
  const { file, ...more } = options;
  const buffers = new Map(
    EXPERT_PARTS.map((part) => {
      const planes = inPlanes(matrices.get(keyOf({ layer: 3, part, expert: 0 })) as Placed).length;
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
      const buffer = gpu.device.createBuffer({ size: planes * SLOTS, usage });
      return [slabWeight(slabs, 0, part, weights).name, { buffer, planes, part }] as const;
    }),
  );
  const carrier = await ExpertCarrier.make({
    gpu,
    slabs,
    weights,
    bufferOf: (name) => buffers.get(name)?.buffer as GPUBuffer,
    feeds: { memory: memory(), file },
    stagingBytes: TOGETHER_BYTES,
    ...more,
  });
  const check = async (placings: readonly Placing[]) => {
    for (const { buffer, planes, part } of buffers.values()) {
      const found = await readBack(buffer);
      for (const { layer, expert, slot } of placings) {
        assert.deepEqual(
          found.subarray(slot * planes, (slot + 1) * planes),
          inPlanes(matrices.get(keyOf({ layer, part, expert })) as Placed),
          `slot ${slot}: ${part} of expert ${expert} of layer ${layer}`,
        );
      }
    }
  };
  try {
    await use({ carrier, check });
  } finally {
    carrier.destroy();
    await carrier.settled();
    for (const { buffer } of buffers.values()) buffer.destroy();
  }
  gpu.check();
}

async function readBack(buffer: GPUBuffer): Promise<Uint8Array> {
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

/** All experts of a layer, into slots from `first` on, round and round. */
function all(layer: number, first = 0): Placing[] {
  return Array.from({ length: EXPERTS }, (_, expert) => ({ layer, expert, slot: (first + expert) % SLOTS }));
}

for (const [title, choice] of [
  ['the file', choosing('file')],
  ['memory', choosing('memory')],
  ['both in turn', choosing('file', 'memory', 'memory', 'file', 'file')],
] as const) {
  test(`from ${title}, in one load and in many, whole or by and by`, async () => {
    // Smaller than an expert: each is a load, and there are more of them than buffers.
    for (const stagingBytes of [TOGETHER_BYTES, undefined, 1]) {
      const source = await openFile('model.bin');
      const file = await feedOf(source);
      await withCarrier({ file, choice, stagingBytes }, async ({ carrier, check }) => {
        await carrier.carry([...all(3), ...all(4, 5)]);
        await check([...all(3), ...all(4, 5)]);
        for (let round = 0; round < 6; round++) {
          const carrying = carrier.begin(all(round % 2 === 0 ? 4 : 3, round));
          for (let at = 0; at < 3 * round; at++) carrying.advance();
          await carrying.finish();
          await check(all(round % 2 === 0 ? 4 : 3, round));
        }
        assert.equal(carrier.experts, 10 + 6 * EXPERTS);
        const read = carrier.bytesRead / carrier.bytesBrought;
        assert.ok(title === 'the file' ? read === 1 : title === 'memory' ? read === 0 : read > 0 && read < 1);
        await carrier.carry([]);
        await carrier.begin([]).finish();
      });
      await source.close();
    }
  });
}

suite('a file that fails while the model runs', () => {
  const faults: SourceError[] = [];
  const onFileFault = (error: SourceError) => faults.push(error);

  async function checkFault(name: string, spoil: (path: string) => Promise<void>, message: RegExp): Promise<void> {
    faults.length = 0;
    const source = await openFile(name);
    const file = await feedOf(source);
    await withCarrier({ file, choice: choosing('file'), stagingBytes: 1, onFileFault }, async ({ carrier, check }) => {
      await carrier.carry(all(3));
      const { bytesRead } = carrier;
      assert.ok(bytesRead > 0);
      await spoil(join(folder, name));
      for (const layer of [4, 3]) {
        await carrier.carry(all(layer, 2));
        await check(all(layer, 2));
      }
      assert.equal(carrier.bytesRead, bytesRead, 'nothing was taken from it any more');
    });
    assert.equal(faults.length, 1);
    assert.match(faults[0]?.message ?? '', message);
    await source.close();
  }

  test('cut short: memory takes over, and it is told once', () =>
    checkFault('short.bin', (path) => truncate(path, 100), /short\.bin: ends at byte|short\.bin: found 100 bytes/));

  test('written to, of the same size: what was read of it goes nowhere', () =>
    checkFault(
      'written.bin',
      async (path) => {
        await writeFile(path, new Uint8Array(fileBytes.length));
        await utimes(path, new Date(1e12), new Date(1e12));
      },
      /written\.bin: found .* expected the file/,
    ));

  test('without its name: it goes on', async () => {
    const source = await openFile('gone.bin');
    const file = await feedOf(source);
    await withCarrier({ file, choice: choosing('file') }, async ({ carrier, check }) => {
      await rm(join(folder, 'gone.bin'));
      await carrier.carry(all(4));
      await check(all(4));
      assert.equal(carrier.bytesRead, carrier.bytesBrought);
    });
    await source.close();
  });

  test('in one of several reads: the others have ended before memory is copied there', async () => {
    faults.length = 0;
    const source = await openFile('some.bin');
    let reads = 0;
    let lost = 0;
    const failing = Object.assign(Object.create(source) as LocalFile, {
      async readInto(offset: number, target: Uint8Array) {
        if (reads++ === 1) throw new SourceError('the disk is gone');
        await new Promise((resolve) => setTimeout(resolve, 30));
        if (target.byteLength === 0) lost++;
        target.fill(reads + offset);
      },
    });
    const file = await feedOf(failing);
    await withCarrier({ file, choice: choosing('file'), onFileFault }, async ({ carrier, check }) => {
      await carrier.carry(all(3));
      await check(all(3));
    });
    assert.deepEqual([reads, lost, faults.length], [3 * EXPERTS, 0, 1]);
    await source.close();
  });
});

/** A file whose reads wait to be let on, and then say whether their memory was still there. */
async function slowFile(name: string) {
  const source = await openFile(name);
  let gate = Promise.withResolvers<void>();
  const seen = { waiting: 0, done: 0, lost: 0 };
  const slow = Object.assign(Object.create(source) as LocalFile, {
    async readInto(offset: number, target: Uint8Array) {
      seen.waiting++;
      await gate.promise;
      // Memory that was taken away has no length any more.
      if (target.byteLength === 0) seen.lost++;
      else await source.readInto(offset, target);
      seen.waiting--;
      seen.done++;
    },
  });
  const open = () => gate.resolve();
  const shut = () => {
    gate = Promise.withResolvers();
  };
  return { source, slow, seen, open, shut };
}

suite('memory that is read into', () => {
  test('stays until the reads have ended, when all is given up', async () => {
    const { source, slow, seen, open } = await slowFile('ended.bin');
    const file = await feedOf(slow);
    await withCarrier({ file, choice: choosing('file') }, async ({ carrier }) => {
      const finished = carrier.begin(all(3)).finish();
      const rejected = assert.rejects(finished, DisposedError);
      assert.equal(seen.waiting, 3 * EXPERTS, 'all are asked for at once');
      carrier.destroy();
      let settled = false;
      const settling = carrier.settled().then(() => {
        settled = true;
      });
      await new Promise((resolve) => setTimeout(resolve, 20));
      assert.ok(!settled);
      open();
      await settling;
      await rejected;
      assert.deepEqual(seen, { waiting: 0, done: 3 * EXPERTS, lost: 0 });
      await assert.rejects(carrier.carry(all(3)), DisposedError);
    });
    await source.close();
  });

  test('stays when a load is dropped, and the next one there waits for its reads', async () => {
    const { source, slow, seen, open, shut } = await slowFile('dropped.bin');
    const file = await feedOf(slow);
    const choice = choosing('file', 'memory', 'memory', 'memory', 'memory', 'memory');
    await withCarrier({ file, choice }, async ({ carrier, check }) => {
      carrier.begin(all(3));
      const waiting = seen.waiting;
      assert.ok(waiting > 0);
      // Round all buffers, back to that of the load that was dropped.
      const placings = Array.from({ length: 5 }, (_, round) => all(round % 2 === 0 ? 4 : 3, round));
      let carried = 0;
      const carrying = (async () => {
        for (const each of placings) {
          await carrier.carry(each);
          await check(each);
          carried++;
        }
      })();
      for (let turns = 0; carried < 3; turns++) {
        assert.ok(turns < 1000, `${carried} loads`);
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
      assert.equal(carried, 3, 'all others have come');
      open();
      await carrying;
      assert.deepEqual(seen, { waiting: 0, done: waiting, lost: 0 });
      shut();
      const dropped = carrier.begin(all(3));
      open();
      await dropped.finish();
      await check(all(3));
    });
    await source.close();
  });

  test('is not sent while somebody writes, nor written to by whoever has lost the turn', async () => {
    const staging = new Staging(gpu, { label: 'test', bytes: 64 });
    const nothing = () => assert.fail('sent');
    const first = staging.take();
    const { promise, resolve } = Promise.withResolvers<void>();
    void staging.write({ turn: first, at: 16, bytes: 16 }, (memory) => {
      assert.equal(memory.length, 16);
      return promise;
    });
    assert.equal(staging.idle, false);
    assert.throws(() => staging.send(first, nothing), InternalError);
    const second = staging.take();
    assert.throws(() => staging.write({ turn: first, at: 0, bytes: 16 }, () => {}), InternalError);
    resolve();
    await staging.untilIdle();
    assert.throws(() => staging.send(first, nothing), InternalError);
    staging.send(second, () => {});
    assert.throws(() => staging.write({ turn: second, at: 0, bytes: 16 }, () => {}), InternalError, 'not mapped');
    await staging.untilIdle();
    staging.destroy();
    await staging.settled();
    await assert.rejects(staging.untilIdle(), DisposedError);
  });
});
