/** Who makes planes, and what becomes of those in work when a worker is lost. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DisposedError, InternalError } from '../../errors.ts';
import { memorySource } from '../../format/source.ts';
import type { Weight } from '../../model/weights.ts';
import { nodePlatform } from '../../platform/node.ts';
import type { PlatformWorker } from '../../platform/platform.ts';
import { gpuFormat } from './formats/index.ts';
import { type GpuFormat, planeWords, toPlanes } from './formats.ts';
import { ownThread, PlanePool, planeMaker } from './plane-pool.ts';

const q6k = gpuFormat('Q6_K') as GpuFormat;
const COLUMNS = 768;
const ROWS = 40;
const fileBytes = ROWS * (COLUMNS / 256) * 210;
const deviceBytes = ROWS * planeWords(q6k, COLUMNS).rowWords * 4;

function shared(length: number): Uint8Array {
  return new Uint8Array(new SharedArrayBuffer(length));
}

test('workers make what toPlanes makes, several pieces at once', async () => {
  const pool = new PlanePool(nodePlatform, 2);
  try {
    const pieces = Array.from({ length: 5 }, (_, piece) => {
      const source = shared(fileBytes).map((_, at) => (at * 31 + piece) ^ (at >> 7));
      return { source, target: shared(deviceBytes) };
    });
    await Promise.all(
      pieces.map(({ source, target }) => {
        const raw = shared(fileBytes);
        raw.set(source);
        return pool.make(q6k, COLUMNS, raw, target);
      }),
    );
    for (const { source, target } of pieces) {
      const expected = new Uint8Array(deviceBytes);
      toPlanes(q6k, COLUMNS, source, expected);
      assert.deepEqual(new Uint8Array(target), expected);
    }
    // Rows that do not fill their planes: the fault comes back, and the worker goes on.
    await assert.rejects(pool.make(q6k, COLUMNS, shared(fileBytes), shared(16)), InternalError);
    await pool.make(q6k, COLUMNS, shared(fileBytes), shared(deviceBytes));
  } finally {
    await pool.close();
  }
  await assert.rejects(pool.make(q6k, COLUMNS, shared(fileBytes), shared(deviceBytes)), DisposedError);
});

test('a worker that is lost ends what any of them has in work', async () => {
  const faults: ((error: unknown) => void)[] = [];
  const spawnWorker = (): PlatformWorker => ({
    postMessage() {},
    onMessage() {},
    onError: (handler) => faults.push(handler),
    async terminate() {},
    ref() {},
    unref() {},
  });
  const pool = new PlanePool({ spawnWorker }, 2);
  const waiting = [1, 2, 3].map(() => pool.make(q6k, COLUMNS, shared(fileBytes), shared(deviceBytes)));
  faults[1]?.(new Error('out of memory'));
  for (const piece of waiting) {
    await assert.rejects(piece, (error) => error instanceof InternalError && /out of memory/.test(error.message));
  }
  await assert.rejects(pool.make(q6k, COLUMNS, shared(fileBytes), shared(deviceBytes)), InternalError);
});

test('workers are for large models on machines with cores to spare, and for sources that must be read whole', async () => {
  const weight = (bytes: number): Weight => ({ name: 'w', format: 'Q6_K', shape: [1, 256], parts: [], bytes });
  const made: string[] = [];
  const place = (threads: number) => ({
    threads: () => threads,
    spawnWorker: (entry: string, data: unknown) => {
      made.push(entry);
      return nodePlatform.spawnWorker('plane-worker', data);
    },
  });
  const plain = [memorySource(new Uint8Array(0))];
  const repeating = [{ ...memorySource(new Uint8Array(0)), repeats: [] }];
  const large = new Map([['w', weight(2 ** 30)]]);
  assert.equal(planeMaker(place(2), { weights: large, sources: plain }), ownThread);
  assert.equal(planeMaker(place(8), { weights: new Map([['w', weight(2 ** 20)]]), sources: plain }), ownThread);
  assert.equal(planeMaker(place(8), { weights: large, sources: repeating }), ownThread);
  assert.deepEqual(made, []);
  for (const [threads, workers] of [
    [3, 1],
    [64, 4],
  ] as const) {
    made.length = 0;
    const pool = planeMaker(place(threads), { weights: large, sources: plain });
    assert.deepEqual(made, Array(workers).fill('plane-worker'));
    assert.equal(pool.piecesAtOnce, workers + 2);
    await pool.close();
  }
});
