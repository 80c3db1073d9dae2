/** Reading from the device: a mapped buffer as plain memory, and what went wrong as a named error. */

import { DeviceLostError, DisposedError } from '../../errors.ts';
import type { Gpu } from './device.ts';

const MAP_READ = 0x1;

/** Bytes of a buffer for results, at the least. */
const LEAST_RESULT_BYTES = 4096;

/** Bytes of a buffer that is to hold so many f32. */
export function resultBytes(count: number): number {
  return Math.max(4 * count, LEAST_RESULT_BYTES);
}

/** A read that waits for the device. */
export interface Read {
  /** Settles as soon as the buffer is free again, whether it was read or not. */
  readonly mapped: Promise<unknown>;
  /** A copy of what was read. */
  readonly bytes: Promise<ArrayBuffer>;
}

/**
 * Reads the first `bytes` of a buffer once the device is done with what was submitted before.
 * @param ended whether the reader has been given up, and nobody wants what it reads
 * @throws DeviceLostError `device_lost`, DisposedError `disposed` and what the device says of itself
 */
export function readBuffer(
  gpu: Gpu,
  buffer: GPUBuffer,
  { bytes, what, ended }: { readonly bytes: number; readonly what: string; readonly ended: () => boolean },
): Read {
  const mapped = buffer.mapAsync(MAP_READ, 0, bytes);
  const read = async () => {
    try {
      await mapped;
    } catch (cause) {
      if (ended()) throw new DisposedError('the GPU backend');
      gpu.check();
      throw new DeviceLostError(`the GPU gave no ${what}; load the model again, or use --device cpu`, { cause });
    }
    const copy = buffer.getMappedRange(0, bytes).slice(0);
    buffer.unmap();
    return copy;
  };
  return { mapped, bytes: read() };
}
