/** A model source over `node:fs`, as small as can be: for tests of the formats that should not need the platform. */

import { existsSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { SourceError } from '../../src/errors.ts';
import type { ByteSource, ModelSource } from '../../src/format/source.ts';

export async function nodeByteSource(path: string): Promise<ByteSource> {
  const handle = await open(path);
  const { size } = await handle.stat();
  return {
    name: path,
    size,
    async readInto(offset, target) {
      for (let done = 0; done < target.byteLength; ) {
        const { bytesRead } = await handle.read(target, done, target.byteLength - done, offset + done);
        if (bytesRead === 0) {
          throw new SourceError(
            `${path}: read past the end, bytes ${offset} to ${offset + target.byteLength} of ${size}`,
          );
        }
        done += bytesRead;
      }
    },
    close: () => handle.close(),
  };
}

/** The file at `path`, with the folder around it. */
export async function nodeModelSource(path: string): Promise<ModelSource> {
  const folder = dirname(path);
  return {
    file: await nodeByteSource(path),
    fileName: basename(path),
    folder: {
      name: folder,
      open: (fileName) => nodeByteSource(join(folder, fileName)),
      has: async (fileName) => existsSync(join(folder, fileName)),
    },
  };
}
