/** Times compute passes by the device's own clock. */

const MAP_READ = 0x1;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const QUERY_RESOLVE = 0x200;

/** A query set holds 4,096 timestamps at the most, two a pass. */
const PASSES_AT_ONCE = 2048;

/**
 * Runs each of `passes` in a compute pass of its own, in order, and returns the nanoseconds of each. Dawn rounds them to
 * 65,536 ns unless its toggle `timestamp_quantization` is off.
 * @returns undefined where the device has no timestamps; then nothing is run
 */
export async function timePasses(
  device: GPUDevice,
  passes: readonly ((pass: GPUComputePassEncoder) => void)[],
): Promise<number[] | undefined> {
  if (!device.features.has('timestamp-query')) return undefined;
  const times: number[] = [];
  for (let first = 0; first < passes.length; first += PASSES_AT_ONCE) {
    times.push(...(await timeSome(device, passes.slice(first, first + PASSES_AT_ONCE))));
  }
  return times;
}

async function timeSome(
  device: GPUDevice,
  passes: readonly ((pass: GPUComputePassEncoder) => void)[],
): Promise<number[]> {
  const count = 2 * passes.length;
  const bytes = 8 * count;
  const querySet = device.createQuerySet({ type: 'timestamp', count });
  const resolved = device.createBuffer({ size: bytes, usage: QUERY_RESOLVE | COPY_SRC });
  const readback = device.createBuffer({ size: bytes, usage: MAP_READ | COPY_DST });
  try {
    const encoder = device.createCommandEncoder();
    passes.forEach((fill, index) => {
      const pass = encoder.beginComputePass({
        timestampWrites: { querySet, beginningOfPassWriteIndex: 2 * index, endOfPassWriteIndex: 2 * index + 1 },
      });
      fill(pass);
      pass.end();
    });
    encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, readback, 0, bytes);
    device.queue.submit([encoder.finish()]);
    await readback.mapAsync(MAP_READ);
    const stamps = new BigUint64Array(readback.getMappedRange());
    return passes.map((_, index) => Number((stamps[2 * index + 1] as bigint) - (stamps[2 * index] as bigint)));
  } finally {
    for (const made of [querySet, resolved, readback]) made.destroy();
  }
}
