/** Streams a synthetic model to disk in pieces, never the whole in memory. */

import { open } from 'node:fs/promises';
import { syntheticModel } from '../../src/synthetic/source.ts';

const PIECE_BYTES = 4 << 20;

/** Writes the model of a shape of src/synthetic/shapes.ts to `path`, and returns the file's size in bytes. */
export async function writeSynthetic(name: string, path: string): Promise<number> {
  const { file: source } = syntheticModel(name);
  const file = await open(path, 'w');
  try {
    // One buffer is written while the other is filled.
    const buffers = [new Uint8Array(PIECE_BYTES), new Uint8Array(PIECE_BYTES)];
    let written: Promise<unknown> = Promise.resolve();
    for (let done = 0; done < source.size; done += PIECE_BYTES) {
      const piece = (buffers[0] as Uint8Array).subarray(0, Math.min(PIECE_BYTES, source.size - done));
      piece.fill(0);
      await source.readInto(done, piece);
      await written;
      written = file.write(piece, 0, piece.length, done);
      buffers.reverse();
    }
    await written;
  } finally {
    await file.close();
  }
  return source.size;
}
