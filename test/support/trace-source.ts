/** Traces in memory, and the fixture. */

import { fileURLToPath } from 'node:url';
import { SourceError } from '../../src/errors.ts';
import { type ModelSource, memorySource } from '../../src/format/source.ts';

/** Tokens of a trained model's routing, made by a generator; its README says how. */
export const SKEWED = fileURLToPath(new URL('../fixtures/routing/skewed', import.meta.url));

export function traceSource(shape: string | Uint8Array, ids: Uint8Array): ModelSource {
  const files: Readonly<Record<string, Uint8Array>> = {
    'trace.json': typeof shape === 'string' ? new TextEncoder().encode(shape) : shape,
    'trace.bin': ids,
  };
  return {
    file: memorySource(files['trace.json'], 'trace.json'),
    fileName: 'trace.json',
    folder: {
      name: 'memory',
      has: async (name) => Object.hasOwn(files, name),
      open: async (name) => {
        if (!Object.hasOwn(files, name)) throw new SourceError(`${name}: no such file`);
        return memorySource(files[name], name);
      },
    },
  };
}
