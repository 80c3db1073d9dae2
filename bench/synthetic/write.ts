/** Streams a synthetic model to disk: the head, then tensor after tensor in pieces, never the whole in memory. */

import { open } from 'node:fs/promises';
import { ggufHead } from '../../test/support/gguf-writer.ts';
import { fillerOf } from './fill.ts';
import { metadataOf, tensorsOf } from './layout.ts';
import { shapes } from './shapes.ts';

const PIECE_BYTES = 4 << 20;

/** Writes the model of a shape of shapes.ts to `path`, and returns the file's size in bytes. */
export async function writeSynthetic(name: string, path: string): Promise<number> {
  const shape = shapes[name];
  if (shape === undefined) {
    throw new Error(`there is no shape ${name}; there are ${Object.keys(shapes).join(', ')}`);
  }
  const tensors = tensorsOf(shape);
  const head = ggufHead({ metadata: metadataOf(name, shape), tensors });
  const file = await open(path, 'w');
  try {
    await file.write(head.bytes, 0, head.bytes.length, 0);
    // One buffer is written while the other is filled.
    const buffers: [Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>] = [
      new Uint8Array(PIECE_BYTES),
      new Uint8Array(PIECE_BYTES),
    ];
    let written: Promise<unknown> = Promise.resolve();
    for (const [i, tensor] of tensors.entries()) {
      const place = head.places[i] as (typeof head.places)[number];
      const { runBytes, fill } = fillerOf(tensor);
      const pieceBytes = PIECE_BYTES - (PIECE_BYTES % runBytes);
      for (let done = 0; done < place.bytes; done += pieceBytes) {
        const piece = buffers[0].subarray(0, Math.min(pieceBytes, place.bytes - done));
        fill(piece);
        await written;
        written = file.write(piece, 0, piece.length, place.offset + done);
        buffers.reverse();
      }
    }
    await written;
  } finally {
    await file.close();
  }
  return head.fileBytes;
}
