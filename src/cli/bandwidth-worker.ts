/** One reader of `bandwidth.ts`: owns its share of the memory and reads all of it in each pass. */

import { parentPort, workerData } from 'node:worker_threads';
import { FULL_LINE, type ReaderData, readLoop } from './bandwidth-loop.ts';

const { bytes, passes, gate } = workerData as ReaderData;
const pages = Math.ceil(bytes / 65_536);
const memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
// Pages that were never written are all one page of zeros, which would sit in the cache.
new Uint32Array(memory.buffer).fill(0x9e3779b9);
const read = await readLoop(memory);

const state = new Int32Array(gate);
const elapsedMs: number[] = [];
let checksum = 0;
for (let pass = 1; pass <= passes; pass++) {
  // All readers start a pass together: the last one that is ready opens it.
  if (Atomics.add(state, 0, 1) + 1 === state[2]! * pass) {
    Atomics.store(state, 1, pass);
    Atomics.notify(state, 1);
  } else {
    for (let open = Atomics.load(state, 1); open < pass; open = Atomics.load(state, 1)) Atomics.wait(state, 1, open);
  }
  const startMs = performance.now();
  checksum ^= read(0, pages * 65_536 - ((pages * 65_536) % FULL_LINE));
  elapsedMs.push(performance.now() - startMs);
}
parentPort!.postMessage({ elapsedMs, bytes: pages * 65_536, checksum });
