/** Times compute passes by the device's own clock. */

const MAP_READ = 0x1;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const QUERY_RESOLVE = 0x200;

/** A query set holds 4,096 timestamps at the most, two a pass. */
const PASSES_AT_ONCE = 2048;
/** Of a pass, in each of a timer's two buffers. */
const PASS_BYTES = 16;
/** Bytes on the device of the timers that there are at once, at the most: one around passes that another times. */
export const TIMERS_BYTES = 2 * 2 * PASSES_AT_ONCE * PASS_BYTES;

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
  const timer = PassTimer.make(device, passes.length) as PassTimer;
  try {
    const encoder = device.createCommandEncoder();
    for (const fill of passes) {
      const pass = encoder.beginComputePass({ timestampWrites: timer.next() });
      fill(pass);
      pass.end();
    }
    return await timer.read(encoder);
  } finally {
    timer.destroy();
  }
}

/** Times passes that others begin, in commands that others submit. */
export class PassTimer {
  readonly #device: GPUDevice;
  readonly #most: number;
  readonly #querySet: GPUQuerySet;
  readonly #resolved: GPUBuffer;
  readonly #readback: GPUBuffer;
  #passes = 0;

  private constructor(device: GPUDevice, most: number) {
    this.#device = device;
    this.#most = most;
    const bytes = PASS_BYTES * most;
    this.#querySet = device.createQuerySet({ type: 'timestamp', count: 2 * most });
    this.#resolved = device.createBuffer({ size: bytes, usage: QUERY_RESOLVE | COPY_SRC });
    this.#readback = device.createBuffer({ size: bytes, usage: MAP_READ | COPY_DST });
  }

  /**
   * @param most passes, at most as many as a query set holds
   * @returns undefined where the device has no timestamps
   */
  static make(device: GPUDevice, most = PASSES_AT_ONCE): PassTimer | undefined {
    return device.features.has('timestamp-query') ? new PassTimer(device, most) : undefined;
  }

  /** What the next pass is begun with; nothing when there have been as many as there may be. */
  next(): GPUComputePassTimestampWrites | undefined {
    if (this.#passes === this.#most) return undefined;
    const first = 2 * this.#passes++;
    return { querySet: this.#querySet, beginningOfPassWriteIndex: first, endOfPassWriteIndex: first + 1 };
  }

  /**
   * The nanoseconds of each pass, in the order in which they were begun.
   * @param encoder what holds passes that are not submitted yet; it is ended and submitted
   */
  async read(encoder = this.#device.createCommandEncoder()): Promise<number[]> {
    const bytes = PASS_BYTES * this.#passes;
    if (bytes === 0) return [];
    encoder.resolveQuerySet(this.#querySet, 0, 2 * this.#passes, this.#resolved, 0);
    encoder.copyBufferToBuffer(this.#resolved, 0, this.#readback, 0, bytes);
    this.#device.queue.submit([encoder.finish()]);
    await this.#readback.mapAsync(MAP_READ, 0, bytes);
    const stamps = new BigUint64Array(this.#readback.getMappedRange(0, bytes));
    return Array.from({ length: this.#passes }, (_, pass) =>
      Number((stamps[2 * pass + 1] as bigint) - (stamps[2 * pass] as bigint)),
    );
  }

  destroy(): void {
    for (const made of [this.#querySet, this.#resolved, this.#readback]) made.destroy();
  }
}
