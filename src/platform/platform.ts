/**
 * What Conclave needs from the place it runs in: files, workers, and facts about the machine. Interfaces only; `node.ts`
 * and `browser.ts` implement them, and everything else in Conclave is web-standard.
 */

import type { FileAddress, LocalFile, ModelSource, SourceInput } from '../format/source.ts';

export type { SourceInput } from '../format/source.ts';

/** The worker entry files there are. */
export type WorkerEntry = 'engine-worker' | 'cpu-worker' | 'plane-worker' | 'template-worker';

/** A worker as the side that made it sees it. */
export interface PlatformWorker {
  postMessage(message: unknown, transfer?: readonly Transferable[]): void;
  /** One handler; messages that come before it is set are kept for it. */
  onMessage(handler: (message: unknown) => void): void;
  /** Called once when the worker throws, cannot start, or ends without having been told to. */
  onError(handler: (error: unknown) => void): void;
  /** Ends the worker and the workers it made. */
  terminate(): Promise<void>;
  /** Whether the worker keeps the process alive (Node; nothing elsewhere). A new worker does: unref it while it idles. */
  ref(): void;
  unref(): void;
}

/** The same line seen from inside the worker; see `worker-port.ts`. */
export interface WorkerPort {
  /** What `spawnWorker` was given. */
  readonly data: unknown;
  postMessage(message: unknown, transfer?: readonly Transferable[]): void;
  /** One handler; messages that come before it is set are kept for it. */
  onMessage(handler: (message: unknown) => void): void;
}

/** Which GPU, and how it is driven. */
export interface GpuChoice {
  /** Of the machine's adapters; absent: the platform's own choice. */
  readonly number?: number;
  /** Without bounds checks in kernels and validation of commands, where the platform can leave them out. */
  readonly unchecked?: boolean;
}

export interface Platform {
  readonly name: 'node' | 'browser';
  /** @throws SourceError `source` naming the path when it cannot be opened. */
  openSource(input: SourceInput): Promise<ModelSource>;
  /**
   * Opens a file again that was opened before, perhaps on another thread.
   * @throws SourceError `source` when it cannot be opened, or is not the same file as it was
   */
  openAgain(address: FileAddress): Promise<LocalFile>;
  /** Starts a worker with `data` (structured clone). */
  spawnWorker(entry: WorkerEntry, data: unknown): PlatformWorker;
  /** What WebAssembly offers here, as kernel rows ask for it: `simd`, `relaxed-simd`, `relaxed-dot`, `threads` (shared memory). */
  features(): ReadonlySet<string>;
  /**
   * WebGPU: `navigator.gpu`, or Dawn through the package `webgpu` in Node. Absent where there is none. The same object each
   * time, and kept: Dawn ends the process when it is collected before its devices.
   * @param choice absent: the platform's own adapter, with all checks
   * @throws Refusal `refused` for an adapter that cannot be had
   */
  gpu(choice?: GpuChoice): Promise<GPU | undefined>;
  /** Copies `from` to the start of `to`, as fast as the platform does it: shared memory into mapped memory, above all. */
  copyBytes(from: Uint8Array, to: Uint8Array): void;
  /** Cores that this process may use. */
  threads(): number;
  /** Bytes that may be allocated now, as far as the platform tells. */
  freeMemoryBytes(): number;
  /** A file that `npm run build` made: `conclave-dot.wasm`, `conclave-relaxed.wasm`, `conclave-simd.wasm`. */
  readAsset(name: string): Promise<Uint8Array<ArrayBuffer>>;
}
