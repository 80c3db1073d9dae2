/**
 * Streams weights from the file straight to their places: matrices are read into their arena and put into groups of four
 * there by the pool, vectors become f32. No weight is held twice.
 */

import { SourceError } from '../../errors.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { formatOf } from '../../quant/index.ts';
import type { PrepareRequest } from '../backend.ts';
import { type CpuFormat, cpuFormat, GROUP_ROWS, groupBytes, groupsOf, packedSegments } from './formats.ts';
import type { CpuProgram, WeightPlace } from './program.ts';
import type { Arena } from './task.ts';

/** Groups a worker puts in order at a time. */
const GROUPS_A_UNIT = 64;
/** Bytes of a read: large enough to stream, small enough that the pool works while others are on their way. */
const READ_BYTES = 8 * 2 ** 20;
const READS_AT_ONCE = 6;

/** Neighbouring groups of one matrix, read at once and put in order at once. */
export interface StorePiece {
  readonly arena: number;
  /** Of the first group. */
  readonly offset: number;
  readonly groups: number;
  readonly groupBytes: number;
  /** Rows of the last group: 1 … 4. */
  readonly lastRows: number;
  readonly blocks: number;
  readonly blockBytes: number;
  readonly segments: readonly number[];
  readonly source: number;
  readonly fileOffset: number;
  readonly bytes: number;
}

/** Every matrix of a model in pieces; the same list on every worker. */
export function storePieces(weights: Weights, program: CpuProgram): StorePiece[] {
  const pieces: StorePiece[] = [];
  for (const [name, weight] of weights) {
    if (weight.shape.length < 2) continue;
    const place = program.weights[name];
    if (place === undefined) continue;
    const rows = weight.shape.at(-2) as number;
    const columns = weight.shape.at(-1) as number;
    const { blockLength, blockBytes } = formatOf(weight.format);
    const bytesOfGroup = groupBytes(weight.format, columns);
    const rowBytes = bytesOfGroup / GROUP_ROWS;
    const matrixBytes = groupsOf(rows) * bytesOfGroup;
    const groupsAtOnce = Math.max(1, Math.floor(READ_BYTES / bytesOfGroup));
    const segments = packedSegments(cpuFormat(weight.format) as CpuFormat);
    let matrix = 0;
    for (const { part, matrices } of partsOf(weight)) {
      // Matrices of whole groups follow each other without a gap, and so are one tall matrix.
      const whole = rows % GROUP_ROWS === 0;
      const tall = whole ? rows * matrices : rows;
      for (let within = 0; within < (whole ? 1 : matrices); within++) {
        for (let row = 0; row < tall; row += groupsAtOnce * GROUP_ROWS) {
          const count = Math.min(tall - row, groupsAtOnce * GROUP_ROWS);
          const groups = groupsOf(count);
          pieces.push({
            arena: place.arena,
            offset: place.offset + (matrix + within) * matrixBytes + (row / GROUP_ROWS) * bytesOfGroup,
            groups,
            groupBytes: bytesOfGroup,
            lastRows: count - (groups - 1) * GROUP_ROWS,
            blocks: columns / blockLength,
            blockBytes,
            segments,
            source: part.source,
            fileOffset: part.offset + (within * rows + row) * rowBytes,
            bytes: count * rowBytes,
          });
        }
      }
      matrix += matrices;
    }
  }
  return pieces;
}

/** The file's tensors of a weight with the matrices in each. */
function partsOf({ shape, parts }: Weight) {
  const matrices = shape.slice(0, -2).reduce((product, n) => product * n, 1);
  return parts.map((part) => ({ part, matrices: matrices / parts.length }));
}

/** Units of work that putting a piece in order takes. */
export function storeUnits(piece: StorePiece): number {
  return Math.ceil(piece.groups / GROUPS_A_UNIT);
}

/** Puts one unit of a piece in order, in place, through the worker's scratch. */
export function storeUnit(piece: StorePiece, unit: number, arena: Arena): void {
  const { bytes, kernels, scratch } = arena;
  const interleave = kernels.interleave as (...parameters: number[]) => void;
  const end = Math.min(piece.groups, (unit + 1) * GROUPS_A_UNIT);
  for (let group = unit * GROUPS_A_UNIT; group < end; group++) {
    const at = piece.offset + group * piece.groupBytes;
    const rows = group === piece.groups - 1 ? piece.lastRows : GROUP_ROWS;
    bytes.copyWithin(scratch, at, at + (rows * piece.groupBytes) / GROUP_ROWS);
    interleave(scratch, at, rows, piece.blocks, piece.blockBytes, ...piece.segments);
  }
}

export interface StoreTarget {
  readonly program: CpuProgram;
  /** Of {@link storePieces}. */
  readonly pieces: readonly StorePiece[];
  /** By arena. */
  readonly memories: readonly WebAssembly.Memory[];
  /** Puts a piece in order, once it has been read and there are workers. */
  readonly pool: Promise<{ store(piece: number): void }>;
}

/** Reads everything to its place and has it put in order. */
export async function storeWeights(request: PrepareRequest, target: StoreTarget): Promise<void> {
  const { weights, sources, onProgress, signal } = request;
  const { program, pieces, memories } = target;
  const bytesTotal = pieces.reduce((sum, { bytes }) => sum + bytes, 0);
  let bytesDone = 0;
  let next = 0;
  const source = (index: number) => {
    const found = sources[index];
    if (found === undefined) throw new SourceError(`the model names file ${index} of ${sources.length}`);
    return found;
  };
  const vectors = [...weights].filter(([, { shape }]) => shape.length < 2);
  await Promise.all(
    vectors.map(([name, weight]) =>
      storeVector(weight, (program.weights[name] as WeightPlace).offset, memories[0] as WebAssembly.Memory, source),
    ),
  );
  // In the order of the file, as far as reads in flight allow.
  const inOrder = pieces
    .map((_, index) => index)
    .sort((a, b) => {
      const [one, other] = [pieces[a] as StorePiece, pieces[b] as StorePiece];
      return one.source - other.source || one.fileOffset - other.fileOffset;
    });
  // Once one read has failed the pool may be gone: what other reads bring is then put in order by nobody.
  let failed = false;
  const reader = async () => {
    try {
      for (let index = inOrder[next++]; index !== undefined; index = inOrder[next++]) {
        signal?.throwIfAborted();
        const piece = pieces[index] as StorePiece;
        const { buffer } = memories[piece.arena] as WebAssembly.Memory;
        await source(piece.source).readInto(piece.fileOffset, new Uint8Array(buffer, piece.offset, piece.bytes));
        const pool = await target.pool;
        if (failed) return;
        pool.store(index);
        bytesDone += piece.bytes;
        onProgress?.({ bytesDone, bytesTotal });
      }
    } catch (error) {
      failed = true;
      throw error;
    }
  };
  await Promise.all(Array.from({ length: READS_AT_ONCE }, reader));
}

async function storeVector(
  weight: Weight,
  offset: number,
  memory: WebAssembly.Memory,
  source: (index: number) => PrepareRequest['sources'][number],
): Promise<void> {
  const format = formatOf(weight.format);
  const home = new Float32Array(memory.buffer);
  let at = offset / 4;
  for (const part of weight.parts) {
    const bytes = new Uint8Array(part.bytes);
    await source(part.source).readInto(part.offset, bytes);
    const blocks = part.bytes / format.blockBytes;
    format.decode(bytes, 0, home, at, blocks);
    at += blocks * format.blockLength;
  }
}
