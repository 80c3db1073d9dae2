/** Reads a small safetensors file whole: for fixtures only, which are trusted. */

import { readFileSync } from 'node:fs';

export interface FixtureTensor {
  /** As safetensors spells it: `F32`, `U8`, `I32`. */
  readonly dtype: string;
  readonly shape: readonly number[];
  /** Starts at a multiple of 8 bytes, so that a typed array of any kind fits over it. */
  readonly bytes: Uint8Array<ArrayBuffer>;
}

export function readSafetensors(path: string | URL): Map<string, FixtureTensor> {
  const file = readFileSync(path);
  const headerBytes = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.toString('utf8', 8, 8 + headerBytes)) as Record<
    string,
    { dtype: string; shape: number[]; data_offsets: [number, number] }
  >;
  const tensors = new Map<string, FixtureTensor>();
  for (const [name, entry] of Object.entries(header)) {
    if (name !== '__metadata__') {
      const [start, end] = entry.data_offsets;
      const bytes = new Uint8Array(end - start);
      bytes.set(file.subarray(8 + headerBytes + start, 8 + headerBytes + end));
      tensors.set(name, { dtype: entry.dtype, shape: entry.shape, bytes });
    }
  }
  return tensors;
}

/** A tensor of the file as floats. Throws when it is not there or not F32. */
export function f32Of(tensors: ReadonlyMap<string, FixtureTensor>, name: string): Float32Array<ArrayBuffer> {
  const tensor = tensorOf(tensors, name, 'F32');
  return new Float32Array(tensor.bytes.buffer);
}

/** A tensor of the file as 32-bit integers. Throws when it is not there or not I32. */
export function i32Of(tensors: ReadonlyMap<string, FixtureTensor>, name: string): Int32Array<ArrayBuffer> {
  const tensor = tensorOf(tensors, name, 'I32');
  return new Int32Array(tensor.bytes.buffer);
}

export function tensorOf(tensors: ReadonlyMap<string, FixtureTensor>, name: string, dtype: string): FixtureTensor {
  const tensor = tensors.get(name);
  if (tensor === undefined || tensor.dtype !== dtype) {
    throw new Error(`fixture: wanted ${name} as ${dtype}, found ${tensor?.dtype ?? [...tensors.keys()].join(', ')}`);
  }
  return tensor;
}
