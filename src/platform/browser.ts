/**
 * The platform of a browser tab or a web worker. Addresses of workers and built files end in `.js` and are written out in
 * full, so that bundlers find them; a browser only ever runs the built package.
 */

import { InternalError, Refusal, SourceError, UsageError } from '../errors.ts';
import { detectFeatures } from './features.ts';
import type { GpuChoice, Platform, PlatformWorker, WorkerEntry } from './platform.ts';
import { openWebInput } from './web-source.ts';
import { makeMailbox } from './worker-port.ts';

export const browserPlatform: Platform = {
  name: 'browser',
  async openSource(input) {
    const address = typeof input === 'string' ? new URL(input, globalThis.location?.href) : input;
    const source = await openWebInput(address);
    if (source === undefined)
      throw new UsageError('in a browser a model is loaded from an http(s) address, a File or several, or a Blob');
    return source;
  },
  async openAgain({ path }) {
    throw new SourceError(`${path}: a browser opens no files by their paths`);
  },
  spawnWorker: spawn,
  features: detectFeatures,
  gpu,
  copyBytes: (from, to) => to.set(from),
  threads: () => navigator.hardwareConcurrency || 1,
  freeMemoryBytes,
  async readAsset(name) {
    const url = assetUrl(name);
    let response: Response;
    try {
      response = await fetch(url);
    } catch (cause) {
      throw new SourceError(`${url.href}: cannot be fetched; serve the package's dist/build beside its code`, {
        cause,
      });
    }
    if (!response.ok)
      throw new SourceError(
        `${url.href}: the server answered ${response.status}; serve the package's dist/build beside its code`,
      );
    return new Uint8Array(await response.arrayBuffer());
  },
};

function assetUrl(name: string): URL {
  switch (name) {
    case 'conclave-dot.wasm':
      return new URL('../build/conclave-dot.wasm', import.meta.url);
    case 'conclave-relaxed.wasm':
      return new URL('../build/conclave-relaxed.wasm', import.meta.url);
    case 'conclave-simd.wasm':
      return new URL('../build/conclave-simd.wasm', import.meta.url);
    default:
      throw new InternalError(`no built file is called ${name}`);
  }
}

function startWorker(entry: WorkerEntry): Worker {
  switch (entry) {
    case 'engine-worker':
      return new Worker(new URL('../engine/engine-worker.js', import.meta.url), {
        type: 'module',
        name: 'conclave-engine-worker',
      });
    case 'cpu-worker':
      return new Worker(new URL('../backend/cpu/cpu-worker.js', import.meta.url), {
        type: 'module',
        name: 'conclave-cpu-worker',
      });
    case 'plane-worker':
      return new Worker(new URL('../backend/gpu/plane-worker.js', import.meta.url), {
        type: 'module',
        name: 'conclave-plane-worker',
      });
    case 'template-worker':
      return new Worker(new URL('../tokenizer/template-worker.js', import.meta.url), {
        type: 'module',
        name: 'conclave-template-worker',
      });
  }
}

function spawn(entry: WorkerEntry, data: unknown): PlatformWorker {
  const worker = startWorker(entry);
  const mailbox = makeMailbox();
  const faults = makeMailbox();
  let ended = false;
  const fail = (error: unknown) => {
    if (ended) return;
    ended = true;
    faults.deliver(error);
  };
  worker.addEventListener('message', (event) => mailbox.deliver(event.data));
  worker.addEventListener('error', (event) => {
    event.preventDefault();
    fail(event.error ?? new InternalError(`the ${entry} failed: ${event.message || 'its script cannot be loaded'}`));
  });
  worker.addEventListener('messageerror', () => fail(new InternalError(`a message of the ${entry} cannot be read`)));
  // A browser's worker has no data of its own: `worker-port.ts` takes the first message for it.
  worker.postMessage(data);
  return {
    postMessage: (message, transfer) => worker.postMessage(message, transfer === undefined ? [] : [...transfer]),
    onMessage: mailbox.listen,
    onError: faults.listen,
    async terminate() {
      ended = true;
      worker.terminate();
    },
    ref() {},
    unref() {},
  };
}

/** @throws Refusal `refused`: a page is shown one adapter, which the browser chooses */
async function gpu({ number = 0 }: GpuChoice = {}): Promise<GPU | undefined> {
  if (number !== 0) {
    throw new Refusal(`gpu:${number} was asked for, and a browser shows a page one GPU only; use gpu`, {
      data: { asked: number },
    });
  }
  return navigator.gpu as GPU | undefined;
}

/** Half of what the browser admits the device has (it says 8 GiB at the most), 2 GiB where it says nothing. */
function freeMemoryBytes(): number {
  const gibibytes =
    'deviceMemory' in navigator && typeof navigator.deviceMemory === 'number' ? navigator.deviceMemory : 4;
  return gibibytes * 2 ** 29;
}
