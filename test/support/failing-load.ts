/**
 * A program for a test: loads a tiny model from a source whose reads fail, or are given up, while others are on their way,
 * says what it was told, and must then end by itself: no worker may be left.
 *
 * Arguments: the model's path, and `read` or `abort`.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { cpuBackend } from '../../src/backend/cpu/backend.ts';
import { ConclaveError, SourceError } from '../../src/errors.ts';
import { openModelFile } from '../../src/format/open.ts';
import type { ByteSource } from '../../src/format/source.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import { planFor } from './device.ts';
import { nodeModelSource } from './node-source.ts';

const [path, how] = process.argv.slice(2) as [string, 'read' | 'abort'];
const file = await openModelFile(await nodeModelSource(path));
const { spec, weights } = readModel(file);
const graph = buildGraph(spec);
const plan = planFor({ spec, graph, weights }, { context: 64, threads: 4 });
const abort = new AbortController();

const [inner] = file.sources as [ByteSource];
let reads = 0;
const vectors = [...weights.values()].filter(({ shape }) => shape.length < 2).length;
const source: ByteSource = {
  ...inner,
  async readInto(offset, target) {
    reads++;
    // Vectors come first, one by one. Of the matrices the third fails at once, the others come later.
    const fails = reads === vectors + 3;
    if (fails && how === 'read') throw new SourceError('the disk is gone');
    if (fails) abort.abort(new SourceError('given up'));
    if (reads > vectors) await sleep(50);
    await inner.readInto(offset, target);
  },
};

try {
  await cpuBackend().prepare({ plan, spec, graph, weights, sources: [source], signal: abort.signal });
  console.log('loaded');
} catch (error) {
  console.log(error instanceof ConclaveError ? `${error.code}: ${error.message}` : error);
}
// Reads that were on their way arrive now; nobody may wait for workers that are gone.
await sleep(200);
await file.close();
console.log('done');
