/**
 * The inside end of a worker's line, the same in Node and in browsers. Worker entry files import it statically, because a
 * browser drops messages that come before somebody listens.
 */

import type { WorkerPort } from './platform.ts';

interface WorkerScope {
  postMessage(message: unknown, transfer?: Transferable[]): void;
  addEventListener(type: 'message', listener: (event: MessageEvent) => void): void;
}

const scope = globalThis as unknown as WorkerScope;
const inBrowserWorker = 'WorkerGlobalScope' in globalThis && !('process' in globalThis);

/** Browser: the first message is `spawnWorker`'s data. */
const browserPort: Promise<WorkerPort> | undefined = inBrowserWorker
  ? new Promise((resolve) => {
      const mailbox = makeMailbox();
      let opened = false;
      scope.addEventListener('message', (event) => {
        if (opened) {
          mailbox.deliver(event.data);
          return;
        }
        opened = true;
        resolve({
          data: event.data,
          postMessage: (message, transfer) => scope.postMessage(message, transfer === undefined ? [] : [...transfer]),
          onMessage: mailbox.listen,
        });
      });
    })
  : undefined;

/** The line to whoever spawned this worker. Call it once, from a worker's entry file. */
export async function workerPort(): Promise<WorkerPort> {
  if (browserPort !== undefined) return browserPort;
  const { nodeWorkerPort } = await import('./node-port.ts');
  return nodeWorkerPort();
}

/** Keeps messages until there is a handler. */
export function makeMailbox(): {
  readonly deliver: (message: unknown) => void;
  readonly listen: (handler: (message: unknown) => void) => void;
} {
  let waiting: unknown[] = [];
  let handler: ((message: unknown) => void) | undefined;
  return {
    deliver(message) {
      if (handler === undefined) waiting.push(message);
      else handler(message);
    },
    listen(next) {
      handler = next;
      const kept = waiting;
      waiting = [];
      for (const message of kept) next(message);
    },
  };
}
