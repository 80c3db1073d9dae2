/**
 * Measures how fast this machine's memory can be read: several threads each read their own share of a region that is
 * larger than caches, all starting each pass together. What decoding could reach at the most, since it reads every
 * active weight once a token.
 */

import { freemem } from 'node:os';
import { Worker } from 'node:worker_threads';
import { InternalError } from '../errors.ts';
import type { ReaderData, ReaderResult } from './bandwidth-loop.ts';

/** Larger than the last cache of nearly every machine. */
const REGION_BYTES = 512 * 2 ** 20;
const PASSES = 6;

export interface Bandwidth {
  /** The best pass. */
  readonly bytesPerSecond: number;
  readonly bytes: number;
  readonly threads: number;
  readonly passes: number;
}

/** Reads up to 512 MiB, at most a quarter of what is free, with `threads` threads, six times; the best pass counts. */
export async function measureBandwidth(threads: number, regionBytes = REGION_BYTES): Promise<Bandwidth> {
  const share = Math.max(65_536, Math.floor(Math.min(regionBytes, freemem() / 4) / threads));
  const gate = new SharedArrayBuffer(12);
  new Int32Array(gate)[2] = threads;
  const entry = new URL(`./bandwidth-worker.${import.meta.url.endsWith('.ts') ? 'ts' : 'js'}`, import.meta.url);
  const workerData: ReaderData = { bytes: share, passes: PASSES, gate };
  const workers = Array.from({ length: threads }, () => new Worker(entry, { workerData }));
  try {
    const results = await Promise.all(workers.map(resultOf));
    const bytes = results.reduce((sum, result) => sum + result.bytes, 0);
    // A pass is over when its slowest reader is.
    const passMs = Array.from({ length: PASSES }, (_, pass) => Math.max(...results.map((r) => r.elapsedMs[pass]!)));
    return { bytesPerSecond: bytes / (Math.min(...passMs) / 1000), bytes, threads, passes: PASSES };
  } finally {
    await Promise.all(workers.map((worker) => worker.terminate()));
  }
}

function resultOf(worker: Worker): Promise<ReaderResult> {
  return new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
    worker.once('exit', () => reject(new InternalError('a bandwidth reader ended without a result')));
  });
}
