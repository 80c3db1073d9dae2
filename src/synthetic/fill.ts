/**
 * The bytes of a synthetic tensor: encoded normal values, so that every block is valid and the weights are as large as
 * layout.ts says. A small tensor's values are all its own. A large one repeats after so many rows, so that a device can
 * copy most of it; a period is made of runs of 256 values, each drawn at random from a pool, so that making it is about as
 * fast as copying and no two of its rows of several runs are likely to be alike. Deterministic: a tensor's bytes depend on
 * its name, format and shape alone.
 */

import { Refusal } from '../errors.ts';
import { formatBytes, formatOf } from '../quant/index.ts';
import type { SyntheticTensor } from './layout.ts';

const RUN_VALUES = 256;
const POOL_RUNS = 512;
/** Up to so many values a tensor's are all its own: routers, norms, all of the shape for tests. */
const SMALL_VALUES = 800_000;
/** About the values of a period; more in a table of tokens, because tokens whose rows are alike are routed alike. */
const PERIOD_VALUES = 1 << 20;
const EMBEDDING_PERIOD_VALUES = 1 << 23;

export interface Filler {
  /** Gives a tensor's bytes, any part of them at any time. */
  fill(offset: number, target: Uint8Array): void;
  /** After how many bytes they repeat, where they do. */
  readonly period?: number;
}

const pools = new Map<string, Uint8Array<ArrayBuffer>>();

export function fillerOf(tensor: SyntheticTensor): Filler {
  const format = formatOf(tensor.format);
  const values = tensor.shape.reduce((product, n) => product * n, 1);
  const columns = tensor.shape.at(-1) as number;
  const mean = tensor.content === 'norm' ? 1 : 0;
  const deviation = { weights: 1 / Math.sqrt(columns), norm: 0.1, embedding: 1 }[tensor.content];
  if (values <= SMALL_VALUES) {
    let bytes: Uint8Array | undefined;
    return {
      fill(offset, target) {
        bytes ??= encoded(tensor.format, normals(values, randomFrom(tensor.name), { mean, deviation }));
        target.set(bytes.subarray(offset, offset + target.length));
      },
    };
  }
  const runBytes = (RUN_VALUES / format.blockLength) * format.blockBytes;
  const most = tensor.content === 'embedding' ? EMBEDDING_PERIOD_VALUES : PERIOD_VALUES;
  const period = periodRows(most, columns) * formatBytes(tensor.format, columns);
  const seed = hashOf(tensor.name);
  return {
    fill(offset, target) {
      const pool = poolOf(tensor.format, { mean, deviation });
      for (let done = 0; done < target.length; ) {
        if (done >= period) {
          // Whole periods stand before it: copying them is many times as fast as drawing runs again.
          const back = Math.floor(done / period) * period;
          target.copyWithin(done, done - back, done - back + Math.min(back, target.length - done));
          done += back;
          continue;
        }
        const at = (offset + done) % period;
        const run = Math.floor(at / runBytes);
        const within = at - run * runBytes;
        const count = Math.min(runBytes - within, period - at, target.length - done);
        const from = (mixed(seed, run) % POOL_RUNS) * runBytes + within;
        target.set(pool.subarray(from, from + count), done);
        done += count;
      }
    },
    ...(period < formatBytes(tensor.format, values) ? { period } : {}),
  };
}

/** An odd number, so that experts, whose rows are a power of two or a few times one, begin at different rows of it. */
function periodRows(values: number, columns: number): number {
  return Math.floor(values / columns - 1) | 1;
}

/** A run's place in the pool: a hash of the tensor and the run's number (the finaliser of MurmurHash3). */
function mixed(seed: number, run: number): number {
  let h = (seed ^ Math.imul(run + 1, 0x9e3779b1)) >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

interface Distribution {
  readonly mean: number;
  readonly deviation: number;
}

function poolOf(formatId: string, distribution: Distribution): Uint8Array {
  const key = `${formatId} ${distribution.mean} ± ${distribution.deviation}`;
  let pool = pools.get(key);
  if (pool === undefined) {
    const values = normals(POOL_RUNS * RUN_VALUES, randomFrom(key), distribution);
    pool = encoded(formatId, values);
    pools.set(key, pool);
  }
  return pool;
}

function encoded(formatId: string, values: Float32Array): Uint8Array<ArrayBuffer> {
  const format = formatOf(formatId);
  if (format.encode === undefined) {
    throw new Refusal(`${formatId} has no encoder, so no synthetic weights can be made in it`);
  }
  const blocks = values.length / format.blockLength;
  const bytes = new Uint8Array(blocks * format.blockBytes);
  format.encode(values, 0, bytes, 0, blocks);
  return bytes;
}

/** FNV-1a. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) {
    hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  }
  return hash;
}

/** Numbers in [0, 1) that depend on `seed` alone: the generator "sfc32" of PractRand, seeded with a hash. */
function randomFrom(seed: string): () => number {
  let a = hashOf(seed);
  let b = seed.length;
  let c = 0x9e3779b9;
  let counter = 1;
  const step = () => {
    const sum = (a + b + counter++) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (((c << 21) | (c >>> 11)) + sum) | 0;
    return (sum >>> 0) / 2 ** 32;
  };
  for (let i = 0; i < 12; i++) {
    step();
  }
  return step;
}

/** Normally distributed values: draws from a table of them, which are as good here and many times as fast to come by. */
function normals(count: number, random: () => number, { mean, deviation }: Distribution): Float32Array {
  table ??= standardNormals(TABLE_VALUES, randomFrom('standard normal values'));
  const values = new Float32Array(count);
  for (let i = 0; i < count; i++) values[i] = mean + deviation * (table[Math.floor(random() * TABLE_VALUES)] as number);
  return values;
}

const TABLE_VALUES = 1 << 16;
let table: Float32Array | undefined;

/** Mean 0, deviation 1; two from two (Box and Muller, 1958). @param count even */
function standardNormals(count: number, random: () => number): Float32Array {
  const values = new Float32Array(count);
  for (let i = 0; i < count; i += 2) {
    const radius = Math.sqrt(-2 * Math.log(1 - random()));
    const angle = 2 * Math.PI * random();
    values[i] = radius * Math.cos(angle);
    values[i + 1] = radius * Math.sin(angle);
  }
  return values;
}
