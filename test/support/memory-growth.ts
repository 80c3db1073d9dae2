/**
 * A program for a test: prepares a model on the CPU and prints what was planned, allocated and taken, as JSON. Everything
 * that is loaded once (code, kernels) is loaded before by a tiny model.
 *
 * Arguments: the tiny model's path, the model's path.
 */

import { PAGE_ROWS } from '../../src/backend/backend.ts';
import { stepOf, withDevice } from './device.ts';

const [tiny, path] = process.argv.slice(2) as [string, string];
const pages = 65536;
let allocated = 0;
const Memory = WebAssembly.Memory;
WebAssembly.Memory = class extends Memory {
  constructor(descriptor: WebAssembly.MemoryDescriptor) {
    super(descriptor);
    allocated += descriptor.initial * pages;
  }
};

const options = { context: 2048, threads: 2 };
const tokens = Array.from({ length: 64 }, (_, position) => ({ token: position, position }));
const use = async (file: string) =>
  withDevice(file, options, async ({ executable, plan }) => {
    await executable.run(stepOf('prompt', tokens, plan.context / PAGE_ROWS));
    // Peak, in KiB: a second copy shows here although it is gone by now.
    const peak = process.resourceUsage().maxRSS * 1024;
    return {
      planned: plan.bytes,
      arenas: plan.arenas,
      held: executable.bytes,
      peak,
      arrayBuffers: process.memoryUsage().arrayBuffers,
    };
  });

const before = await use(tiny);
allocated = 0;
const after = await use(path);
console.log(
  JSON.stringify({
    planned: after.planned,
    arenas: after.arenas,
    held: after.held,
    allocated,
    peakGrowth: after.peak - before.peak,
    arrayBufferGrowth: after.arrayBuffers - before.arrayBuffers,
  }),
);
