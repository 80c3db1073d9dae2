/** Weights for the reference: read in pieces and decoded once to f32, which is also how they stay. */

import { OutOfMemoryError } from '../../errors.ts';
import type { ByteSource } from '../../format/source.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { formatOf } from '../../quant/index.ts';
import type { LoadProgress } from '../backend.ts';

/** About so many bytes of a file are held while they are decoded. */
const PIECE_BYTES = 1 << 20;

/** Bytes a weight takes in the reference: its values as f32. */
export function referenceWeightBytes(weight: { readonly shape: readonly number[] }): number {
  return 4 * weight.shape.reduce((product, size) => product * size, 1);
}

export interface StoreRequest {
  readonly weights: Weights;
  readonly sources: readonly ByteSource[];
  onProgress?(progress: LoadProgress): void;
  readonly signal?: AbortSignal;
}

/** Every weight as f32, by logical name. @throws OutOfMemoryError `out_of_memory` */
export async function decodeWeights(request: StoreRequest): Promise<Map<string, Float32Array>> {
  const { weights, sources } = request;
  const bytesTotal = [...weights.values()].reduce((sum, weight) => sum + weight.bytes, 0);
  const decoded = new Map<string, Float32Array>();
  let bytesDone = 0;
  for (const weight of weights.values()) {
    const values = allocate(weight);
    const { blockBytes, blockLength, decode } = formatOf(weight.format);
    const pieceBlocks = Math.max(1, Math.floor(PIECE_BYTES / blockBytes));
    let at = 0;
    for (const part of weight.parts) {
      const blocks = part.bytes / blockBytes;
      for (let block = 0; block < blocks; block += pieceBlocks) {
        request.signal?.throwIfAborted();
        const count = Math.min(pieceBlocks, blocks - block);
        const piece = new Uint8Array(count * blockBytes);
        await sources[part.source].readInto(part.offset + block * blockBytes, piece);
        decode(piece, 0, values, at, count);
        at += count * blockLength;
        bytesDone += piece.byteLength;
        request.onProgress?.({ bytesDone, bytesTotal });
      }
    }
    decoded.set(weight.name, values);
  }
  return decoded;
}

function allocate(weight: Weight): Float32Array {
  return allocateF32(referenceWeightBytes(weight) / 4, `the weight ${weight.name} [${weight.shape.join(', ')}]`);
}

/** @throws OutOfMemoryError `out_of_memory` naming what it was for */
export function allocateF32(length: number, what: string): Float32Array {
  try {
    return new Float32Array(length);
  } catch (cause) {
    throw new OutOfMemoryError(
      `the reference backend could not get ${4 * length} bytes for ${what}; choose a smaller model or the CPU backend`,
      { cause, data: { bytes: 4 * length } },
    );
  }
}
