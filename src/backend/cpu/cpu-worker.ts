/** The entry file of a pool's worker: is sent its program, then waits for commands in shared memory until told to exit. */

import { recordError } from '../../errors.ts';
import { workerPort } from '../../platform/worker-port.ts';
import { Command } from './control.ts';
import { PoolWorker, type WorkerData } from './pool.ts';

const port = await workerPort();
port.onMessage((message) => {
  const worker = new PoolWorker(message as WorkerData);
  worker.runner.onCrash = (error) => port.postMessage(recordError(error));
  let generation = 0;
  port.postMessage('ready');
  for (;;) {
    const next = worker.control.next(generation);
    generation = next.generation;
    if (next.command === Command.exit) break;
    worker.perform(next.command, next.argument);
  }
});
