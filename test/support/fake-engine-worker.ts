/**
 * The engine's real loop over an executable without weights, in a real worker. Some tokens of a prompt bring faults, so
 * that tests can see how each of them reaches the main side.
 */

import type { Backend } from '../../src/backend/backend.ts';
import { runEngine } from '../../src/engine/loop.ts';
import { NonFiniteError, Refusal, SourceError } from '../../src/errors.ts';
import { workerPort } from '../../src/platform/worker-port.ts';
import { DrawingExecutable, type DrawingOptions, FakeExecutable, ProfilingExecutable } from './fake-executable.ts';

/** Tokens of the fake vocabulary that do something when they are run. */
const FAULTS: Readonly<Record<number, () => void>> = {
  // A value that is not finite.
  120: () => {
    throw new NonFiniteError('layer 2: NaN');
  },
  // The worker dies.
  121: () => process.exit(3),
  // An error outside any request.
  122: () =>
    queueMicrotask(() => {
      throw new Error('thrown in the void');
    }),
  // A run that takes a while.
  123: () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20),
};

const backend: Backend = {
  device: 'reference',
  rows: [],
  async prepare({ plan, spec, sources, onProgress, onFault }) {
    if (plan.architecture === 'refused')
      throw new Refusal('nothing serves this', { reasons: [{ row: 'row', reason: 'because' }] });
    if (plan.architecture === 'dies') process.exit(4);
    if (plan.architecture === 'never') await new Promise(() => {});
    // Reads every byte of every source twice, into shared memory and into its own, and compares.
    for (const { size, readInto } of sources) {
      const shared = new Uint8Array(new SharedArrayBuffer(size));
      const own = new Uint8Array(size);
      await Promise.all([readInto(0, shared), readInto(0, own)]);
      if (!own.every((byte, at) => byte === shared[at])) throw new Error('two ways of reading differ');
      onProgress?.({ bytesDone: size, bytesTotal: size });
    }
    if (plan.architecture === 'limps') onFault?.(new SourceError('the disk is gone'));
    const options: DrawingOptions = {
      pages: plan.cache.pages,
      vocabulary: spec.vocabulary,
      onRun: ({ tokens }) => {
        for (const token of tokens) FAULTS[token]?.();
      },
      late: (run) => run % 3,
    };
    if (plan.architecture === 'draws') return new DrawingExecutable(options);
    return plan.architecture === 'profiled' ? new ProfilingExecutable(options) : new FakeExecutable(options);
  },
};

await runEngine(await workerPort(), async () => backend);
