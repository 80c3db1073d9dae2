/** A folder of files in memory as a model source, which writes down what was read and what is still open. */

import { SourceError } from '../../src/errors.ts';
import { type ByteSource, type ModelSource, memorySource } from '../../src/format/source.ts';

export interface MemoryFolder {
  /** `file` with its folder around it. */
  source(file: string): ModelSource;
  /** Names of sources that were opened and not closed, the given file's included. */
  readonly open: string[];
  /** Every read: file, offset, bytes. */
  readonly reads: (readonly [string, number, number])[];
}

export function memoryFolder(files: Readonly<Record<string, Uint8Array>>): MemoryFolder {
  const open: string[] = [];
  const reads: (readonly [string, number, number])[] = [];
  const openFile = (name: string): ByteSource => {
    if (!Object.hasOwn(files, name)) throw new SourceError(`${name}: no such file`);
    const inner = memorySource(files[name], name);
    open.push(name);
    return {
      ...inner,
      async readInto(offset, target) {
        reads.push([name, offset, target.byteLength]);
        await inner.readInto(offset, target);
      },
      async close() {
        open.splice(open.indexOf(name), 1);
      },
    };
  };
  return {
    open,
    reads,
    source: (file) => ({
      file: openFile(file),
      fileName: file,
      folder: {
        name: 'memory',
        open: async (name) => openFile(name),
        has: async (name) => Object.hasOwn(files, name),
      },
    }),
  };
}

/** `bytes` as a file on its own, without a folder. */
export function loneSource(bytes: Uint8Array, name = 'model.gguf'): ModelSource {
  return { file: memorySource(bytes, name), fileName: name };
}
