/** Matrices of any bits in the file's rows, in the CPU's groups and in the GPU's planes. */

import { readFileSync } from 'node:fs';
import {
  cpuFormat,
  type cpuFormats,
  GROUP_ROWS,
  groupBytes,
  groupsOf,
  packedSegments,
} from '../../src/backend/cpu/formats.ts';
import { storeUnit, storeUnits } from '../../src/backend/cpu/store.ts';
import type { Arena, Kernels } from '../../src/backend/cpu/task.ts';
import { gpuFormat } from '../../src/backend/gpu/formats/index.ts';
import { type GpuFormat, planeWords, toPlanes } from '../../src/backend/gpu/formats.ts';
import { formatOf } from '../../src/quant/index.ts';

/** A matrix and where it goes. */
export interface Placed {
  readonly format: GpuFormat;
  readonly columns: number;
  readonly rows: number;
  /** As the file has them. */
  readonly bytes: Uint8Array;
}

let state = 1;
/** Any bits: no format minds. */
export function randomBytes(length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  for (let i = 0; i < length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

export function matrixOf(id: string, rows: number, columns: number): Placed {
  const format = gpuFormat(id) as GpuFormat;
  const { blockBytes, blockLength } = formatOf(id);
  return { format, columns, rows, bytes: randomBytes(rows * (columns / blockLength) * blockBytes) };
}

const wasm = new WebAssembly.Module(readFileSync(new URL('../../build/conclave-simd.wasm', import.meta.url)));

/** The matrix as the CPU's own kernel puts it into an arena. */
export function inGroups({ format: { id }, columns, rows, bytes }: Placed): Uint8Array {
  const { blockBytes, blockLength } = formatOf(id);
  const size = groupBytes(id, columns);
  const groups = groupsOf(rows);
  const scratch = 1024;
  const offset = scratch + Math.ceil(size / 64) * 64;
  const pages = Math.ceil((offset + groups * size) / 65536);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: 65536, shared: true });
  const { exports } = new WebAssembly.Instance(wasm, { env: { memory } });
  const arena: Arena = {
    kernels: exports as unknown as Kernels,
    bytes: new Uint8Array(memory.buffer),
    i32: new Int32Array(memory.buffer),
    f32: new Float32Array(memory.buffer),
    scratch,
    brought: { serial: -1, from: 0, key: 0 },
  };
  const piece = {
    arena: 0,
    offset,
    groups,
    groupBytes: size,
    lastRows: rows - (groups - 1) * GROUP_ROWS,
    blocks: columns / blockLength,
    blockBytes,
    segments: packedSegments(cpuFormat(id) as (typeof cpuFormats)[number]),
    source: 0,
    fileOffset: 0,
    bytes: bytes.length,
  };
  arena.bytes.set(bytes, offset);
  for (let unit = 0; unit < storeUnits(piece); unit++) storeUnit(piece, unit, arena);
  return arena.bytes.slice(offset, offset + groups * size);
}

export function inPlanes({ format, columns, rows, bytes }: Placed): Uint8Array {
  const target = new Uint8Array(rows * planeWords(format, columns).rowWords * 4);
  toPlanes(format, columns, bytes, target);
  return target;
}
