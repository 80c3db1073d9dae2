/**
 * Weights from the file to the device: ranges are read, put into planes in a mapped staging buffer, and copied to their
 * place by the device. A few pieces are on their way at once; no weight is ever held whole in the host's memory. Of a
 * range that repeats, as its source says, one period is read, and the device copies it over the rest.
 */

import { SourceError } from '../../errors.ts';
import { periodOf } from '../../format/source.ts';
import type { Weight } from '../../model/weights.ts';
import { formatOf } from '../../quant/index.ts';
import type { PrepareRequest } from '../backend.ts';
import type { Gpu } from './device.ts';
import { gpuFormat } from './formats/index.ts';
import { type GpuFormat, planeWords } from './formats.ts';
import { deviceBytes } from './layout.ts';
import type { PlaneMaker } from './plane-pool.ts';

const MAP_WRITE = 0x2;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;

/** Device bytes of a piece, at most, unless one row is larger. */
const PIECE_BYTES = 8 * 2 ** 20;

interface Piece {
  readonly weight: Weight;
  readonly format: GpuFormat;
  readonly columns: number;
  readonly source: number;
  readonly fileOffset: number;
  readonly fileBytes: number;
  /** Bytes of the file that it stands for: more than `fileBytes` where it repeats. */
  readonly fileSpan: number;
  /** Where it goes in the weight's buffer. */
  readonly offset: number;
  readonly bytes: number;
  /** What it fills there: more than `bytes` where it repeats. */
  readonly span: number;
}

export async function storeOnGpu(
  request: Pick<PrepareRequest, 'weights' | 'sources' | 'onProgress' | 'signal'>,
  gpu: Gpu,
  { buffers, planes }: { readonly buffers: ReadonlyMap<string, GPUBuffer>; readonly planes: PlaneMaker },
): Promise<void> {
  const { weights, sources, onProgress, signal } = request;
  const { device } = gpu;
  // Those that have no place here are elsewhere.
  const own = [...weights.values()].filter(({ name }) => buffers.has(name));
  const pieces = own.flatMap((weight) => piecesOf(weight, sources));
  const bytesTotal = pieces.reduce((sum, piece) => sum + piece.fileSpan, 0);
  let bytesDone = 0;
  let next = 0;
  const sourceOf = (index: number) => {
    const source = sources[index];
    if (source === undefined) throw new SourceError(`the model names file ${index} of ${sources.length}`);
    return source;
  };
  const largest = pieces.reduce((most, { bytes }) => Math.max(most, bytes), 0);
  // The device takes the lanes' submissions one after the other: they share it.
  let periods: GPUBuffer | undefined;
  const largestRead = pieces.reduce((most, { fileBytes }) => Math.max(most, fileBytes), 0);
  const lane = async () => {
    let staging: GPUBuffer | undefined;
    const made = sharedBytes(largest);
    const read = sharedBytes(largestRead);
    try {
      for (let piece = pieces[next++]; piece !== undefined; piece = pieces[next++]) {
        signal?.throwIfAborted();
        const raw = read.subarray(0, piece.fileBytes);
        await sourceOf(piece.source).readInto(piece.fileOffset, raw);
        // Planes are put together in ordinary memory: mapped memory may be uncached, and then takes whole copies only.
        const target = made.subarray(0, piece.bytes);
        await planes.make(piece.format, piece.columns, raw, target);
        if (staging === undefined) {
          staging = device.createBuffer({ size: largest, usage: MAP_WRITE | COPY_SRC, mappedAtCreation: true });
        } else {
          await staging.mapAsync(0x2);
        }
        new Uint8Array(staging.getMappedRange(0, piece.bytes)).set(target);
        staging.unmap();
        const encoder = device.createCommandEncoder();
        const home = buffers.get(piece.weight.name) as GPUBuffer;
        if (piece.span > piece.bytes) {
          periods ??= device.createBuffer({ size: periodsBytes(own), usage: COPY_SRC | COPY_DST });
          repeat(encoder, piece, { staging, periods, home });
        } else {
          encoder.copyBufferToBuffer(staging, 0, home, piece.offset, piece.bytes);
        }
        device.queue.submit([encoder.finish()]);
        gpu.check();
        bytesDone += piece.fileSpan;
        onProgress?.({ bytesDone, bytesTotal });
      }
    } catch (error) {
      // The other lanes end with the piece that they are at.
      next = pieces.length;
      throw error;
    } finally {
      staging?.destroy();
    }
  };
  const lanes = Promise.all(Array.from({ length: Math.min(planes.piecesAtOnce, pieces.length) }, lane));
  await Promise.all([
    lanes.finally(() => periods?.destroy()),
    ...own
      .filter(({ shape }) => shape.length < 2)
      .map(async (weight) => {
        const values = await readVector(weight, sourceOf);
        device.queue.writeBuffer(buffers.get(weight.name) as GPUBuffer, 0, values);
      }),
  ]);
  await device.queue.onSubmittedWorkDone();
  gpu.check();
}

/** Bytes that storing weights takes on the device beside theirs, at the most. */
export function storingBytes(weights: readonly Weight[], piecesAtOnce: number): number {
  const largest = weights.reduce((most, weight) => {
    const bytes = deviceBytes(weight);
    const row = bytes / weight.shape.slice(0, -1).reduce((product, n) => product * n, 1);
    return weight.shape.length < 2 ? most : Math.max(most, Math.min(bytes, Math.max(PIECE_BYTES, row)));
  }, 0);
  return piecesAtOnce * largest + periodsBytes(weights);
}

/** Of the buffer that periods are put together in, as many as are copied at once. */
function periodsBytes(weights: readonly Weight[]): number {
  return Math.min(
    PIECE_BYTES,
    weights.reduce((most, weight) => Math.max(most, deviceBytes(weight)), 0),
  );
}

/** One period from `staging` over all that it fills, by way of as many as `periods` holds: no buffer is copied to itself. */
function repeat(
  encoder: GPUCommandEncoder,
  { offset, bytes, span }: Piece,
  { staging, periods, home }: Readonly<Record<'staging' | 'periods' | 'home', GPUBuffer>>,
): void {
  const held = Math.min(Math.floor(periods.size / bytes) * bytes, Math.ceil(span / bytes) * bytes);
  for (let at = 0; at < held; at += bytes) encoder.copyBufferToBuffer(staging, 0, periods, at, bytes);
  for (let at = 0; at < span; at += held) {
    encoder.copyBufferToBuffer(periods, 0, home, offset + at, Math.min(held, span - at));
  }
}

/** Where the main side can read into it, and workers make planes in it, without a copy between threads. */
function sharedBytes(length: number): Uint8Array {
  return new Uint8Array(
    typeof SharedArrayBuffer === 'undefined' ? new ArrayBuffer(length) : new SharedArrayBuffer(length),
  );
}

function piecesOf(weight: Weight, sources: PrepareRequest['sources']): Piece[] {
  const { shape, parts } = weight;
  const format = gpuFormat(weight.format);
  if (shape.length < 2 || format === undefined) return [];
  const columns = shape.at(-1) as number;
  const { blockLength, blockBytes } = formatOf(weight.format);
  const fileRow = (columns / blockLength) * blockBytes;
  const deviceRow = planeWords(format, columns).rowWords * 4;
  const atOnce = Math.max(1, Math.floor(PIECE_BYTES / deviceRow));
  const pieces: Piece[] = [];
  let placed = 0;
  for (const part of parts) {
    const rows = part.bytes / fileRow;
    const source = sources[part.source];
    const period = source && periodOf(source, part.offset, part.bytes);
    // Rows that repeat all together, so long as one period is a piece: else they are read like any others.
    const periodRows = (period ?? 0) / fileRow;
    const repeats = periodRows > 0 && Number.isInteger(periodRows) && periodRows <= PIECE_BYTES / deviceRow;
    const most = repeats ? rows : atOnce;
    for (let row = 0; row < rows; row += most) {
      const filled = Math.min(most, rows - row);
      const count = repeats ? periodRows : filled;
      pieces.push({
        weight,
        format,
        columns,
        source: part.source,
        fileOffset: part.offset + row * fileRow,
        fileBytes: count * fileRow,
        fileSpan: filled * fileRow,
        offset: (placed + row) * deviceRow,
        bytes: count * deviceRow,
        span: filled * deviceRow,
      });
    }
    placed += rows;
  }
  return pieces;
}

/** A vector's values as f32. */
export async function readVector(
  weight: Weight,
  sourceOf: (index: number) => PrepareRequest['sources'][number],
): Promise<Float32Array<ArrayBuffer>> {
  const format = formatOf(weight.format);
  const values = new Float32Array(weight.shape[0] as number);
  let at = 0;
  for (const part of weight.parts) {
    const bytes = new Uint8Array(part.bytes);
    await sourceOf(part.source).readInto(part.offset, bytes);
    const blocks = part.bytes / format.blockBytes;
    format.decode(bytes, 0, values, at, blocks);
    at += blocks * format.blockLength;
  }
  return values;
}
