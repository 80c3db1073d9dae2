/**
 * The bytes of a synthetic tensor: encoded normal values, so that every block is valid and the weights are as large as
 * layout.ts says. A small tensor's values are all its own; a large one is made of runs of 256 values, each drawn at
 * random from a pool, so that writing is about as fast as copying and no two rows of several runs are likely to be
 * alike. Deterministic: a tensor's bytes depend on its name, format and shape alone.
 */

import { formatOf } from '../../src/quant/index.ts';
import type { SyntheticTensor } from './layout.ts';

const RUN_VALUES = 256;
const POOL_RUNS = 2048;
const SMALL_VALUES = 1 << 20;

export interface FilledTensor {
  /** What is filled at once must be a multiple of this many bytes, except at the tensor's end. */
  readonly runBytes: number;
  /** Writes the tensor's next bytes over the whole of `target`. */
  fill(target: Uint8Array<ArrayBuffer>): void;
}

const pools = new Map<string, Uint16Array>();

export function fillerOf(tensor: SyntheticTensor): FilledTensor {
  const format = formatOf(tensor.format);
  const runBytes = (RUN_VALUES / format.blockLength) * format.blockBytes;
  const values = tensor.shape.reduce((product, n) => product * n, 1);
  const columns = tensor.shape.at(-1) as number;
  const random = randomFrom(tensor.name);
  const mean = tensor.content === 'norm' ? 1 : 0;
  const deviation = { weights: 1 / Math.sqrt(columns), norm: 0.1, embedding: 1 }[tensor.content];
  if (values <= SMALL_VALUES) {
    const bytes = encoded(tensor.format, normals(values, random, { mean, deviation }));
    let done = 0;
    return {
      runBytes,
      fill(target) {
        target.set(bytes.subarray(done, done + target.length));
        done += target.length;
      },
    };
  }
  const pool = poolOf(tensor.format, { mean, deviation });
  const runWords = runBytes / 2;
  return {
    runBytes,
    fill(target) {
      const words = new Uint16Array(target.buffer, target.byteOffset, target.length / 2);
      for (let at = 0; at < words.length; at += runWords) {
        const from = Math.floor(random() * POOL_RUNS) * runWords;
        const count = Math.min(runWords, words.length - at);
        // A loop: for so few bytes, making a subarray to `set` costs more than copying them.
        for (let i = 0; i < count; i++) {
          words[at + i] = pool[from + i] as number;
        }
      }
    },
  };
}

interface Distribution {
  readonly mean: number;
  readonly deviation: number;
}

function poolOf(formatId: string, distribution: Distribution): Uint16Array {
  const key = `${formatId} ${distribution.mean} ± ${distribution.deviation}`;
  let pool = pools.get(key);
  if (pool === undefined) {
    const values = normals(POOL_RUNS * RUN_VALUES, randomFrom(key), distribution);
    pool = new Uint16Array(encoded(formatId, values).buffer);
    pools.set(key, pool);
  }
  return pool;
}

function encoded(formatId: string, values: Float32Array): Uint8Array<ArrayBuffer> {
  const format = formatOf(formatId);
  if (format.encode === undefined) {
    throw new Error(`${formatId} has no encoder, so no synthetic weights can be made in it`);
  }
  const blocks = values.length / format.blockLength;
  const bytes = new Uint8Array(blocks * format.blockBytes);
  format.encode(values, 0, bytes, 0, blocks);
  return bytes;
}

/** Numbers in [0, 1) that depend on `seed` alone: the generator "sfc32" of PractRand, seeded with a hash (FNV-1a). */
function randomFrom(seed: string): () => number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < seed.length; i++) {
    hash = Math.imul(hash ^ seed.charCodeAt(i), 0x01000193);
  }
  let a = hash;
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

/** Normally distributed values (Box and Muller, 1958). */
function normals(count: number, random: () => number, { mean, deviation }: Distribution): Float32Array {
  return Float32Array.from({ length: count }, () => {
    const radius = Math.sqrt(-2 * Math.log(1 - random()));
    return mean + deviation * radius * Math.cos(2 * Math.PI * random());
  });
}
