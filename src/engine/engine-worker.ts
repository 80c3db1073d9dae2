/** The entry file of the engine's own worker. */

import type { Backend } from '../backend/backend.ts';
import { workerPort } from '../platform/worker-port.ts';
import type { Plan } from '../plan/plan.ts';
import { runEngine } from './loop.ts';

/** Only the code of the device that is used is loaded. */
async function backendFor(plan: Plan): Promise<Backend> {
  switch (plan.device) {
    case 'reference':
      return (await import('../backend/reference/backend.ts')).referenceBackend;
    case 'cpu':
      return (await import('../backend/cpu/backend.ts')).cpuBackend();
  }
}

await runEngine(await workerPort(), backendFor);
