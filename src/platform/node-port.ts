/** The inside end of a worker's line in Node; see `worker-port.ts`. */

import { parentPort, workerData } from 'node:worker_threads';
import { InternalError } from '../errors.ts';
import type { WorkerPort } from './platform.ts';

export function nodeWorkerPort(): WorkerPort {
  const port = parentPort;
  if (port === null) throw new InternalError('a worker entry file was run outside a worker');
  return {
    data: workerData,
    postMessage: (message, transfer) => port.postMessage(message, transfer as never),
    // Node keeps messages until somebody listens.
    onMessage: (handler) => port.on('message', handler),
  };
}
