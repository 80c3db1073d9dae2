/**
 * Who puts weights into planes while a model loads: this thread, or workers where the model is large and there are cores
 * for them. One thread makes 1 to 2 GB of planes a second, a fifth of what can be read and copied to the device meanwhile.
 */

import { DisposedError, type ErrorRecord, InternalError, recordError, reviveError } from '../../errors.ts';
import type { Platform, PlatformWorker } from '../../platform/platform.ts';
import type { FormatId } from '../../quant/index.ts';
import type { PrepareRequest } from '../backend.ts';
import { type GpuFormat, toPlanes } from './formats.ts';

/** More are no faster: then copying to the device takes as long. */
const MOST_WORKERS = 4;
/** Smaller models are in place before workers have started. */
const LEAST_BYTES = 2 ** 28;
/** Pieces beside those in the workers: being read, or copied to the device. */
const PIECES_BETWEEN = 2;
const PIECES_ALONE = 4;

export interface PlaneTask {
  readonly task: number;
  readonly format: FormatId;
  readonly columns: number;
  readonly source: Uint8Array;
  readonly target: Uint8Array;
}

export interface PlaneAnswer {
  readonly task: number;
  readonly error?: ErrorRecord;
}

export interface PlaneMaker {
  /** Pieces that should be on their way at once. */
  readonly piecesAtOnce: number;
  /** As `toPlanes` of formats.ts, in shared memory if this runtime has any. */
  make(format: GpuFormat, columns: number, source: Uint8Array, target: Uint8Array): Promise<void>;
  /** Ends the workers; what is in work fails. */
  close(): Promise<void>;
}

export const ownThread: PlaneMaker = {
  piecesAtOnce: PIECES_ALONE,
  async make(format, columns, source, target) {
    toPlanes(format, columns, source, target);
  },
  async close() {},
};

/** Pieces that are on their way at once while weights of so many bytes are stored, at the most. */
export function mostPiecesAtOnce(bytes: number): number {
  return bytes < LEAST_BYTES ? PIECES_ALONE : MOST_WORKERS + PIECES_BETWEEN;
}

/** Who makes the planes of a model. Leaves two cores to reading and to copying. */
export function planeMaker(
  place: Pick<Platform, 'spawnWorker' | 'threads'>,
  { weights, sources }: Pick<PrepareRequest, 'weights' | 'sources'>,
): PlaneMaker {
  const workers = Math.min(MOST_WORKERS, place.threads() - 2);
  const bytes = [...weights.values()].reduce((sum, weight) => sum + weight.bytes, 0);
  // Of what repeats, next to nothing is read.
  const repeats = sources.some((source) => source.repeats !== undefined);
  const alone = workers < 1 || bytes < LEAST_BYTES || repeats || typeof SharedArrayBuffer === 'undefined';
  return alone ? ownThread : new PlanePool(place, workers);
}

interface Pending {
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

/** Workers that make planes from shared memory to shared memory. */
export class PlanePool implements PlaneMaker {
  readonly piecesAtOnce: number;
  readonly #workers: readonly { readonly worker: PlatformWorker; readonly pending: Map<number, Pending> }[];
  #next = 0;
  #failure: Error | undefined;

  constructor(place: Pick<Platform, 'spawnWorker'>, workers: number) {
    this.piecesAtOnce = workers + PIECES_BETWEEN;
    this.#workers = Array.from({ length: workers }, () => {
      const worker = place.spawnWorker('plane-worker', undefined);
      const pending = new Map<number, Pending>();
      worker.onMessage((message) => {
        const { task, error } = message as PlaneAnswer;
        const waiting = pending.get(task);
        pending.delete(task);
        if (error === undefined) waiting?.resolve();
        else waiting?.reject(reviveError(error));
      });
      worker.onError((error) => {
        const what = `a worker that makes planes failed: ${recordError(error).message}`;
        this.#fail(new InternalError(what, { cause: error }));
      });
      return { worker, pending };
    });
  }

  make(format: GpuFormat, columns: number, source: Uint8Array, target: Uint8Array): Promise<void> {
    if (this.#failure !== undefined) return Promise.reject(this.#failure);
    const { worker, pending } = this.#workers.reduce((least, each) =>
      each.pending.size < least.pending.size ? each : least,
    );
    const task = this.#next++;
    return new Promise((resolve, reject) => {
      pending.set(task, { resolve, reject });
      worker.postMessage({ task, format: format.id, columns, source, target } satisfies PlaneTask);
    });
  }

  async close(): Promise<void> {
    this.#fail(new DisposedError('the workers that make planes'));
    await Promise.all(this.#workers.map(({ worker }) => worker.terminate()));
  }

  /** A worker that is lost takes its pieces with it: nothing more can be made. */
  #fail(error: Error): void {
    this.#failure ??= error;
    for (const { pending } of this.#workers) {
      for (const { reject } of pending.values()) reject(this.#failure);
      pending.clear();
    }
  }
}
