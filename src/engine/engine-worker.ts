/** The entry file of the engine's own worker. */

import type { Backend } from '../backend/backend.ts';
import type { DeviceName } from '../plan/plan.ts';
import { platform } from '../platform/index.ts';
import { workerPort } from '../platform/worker-port.ts';
import type { EngineBoot } from './protocol.ts';

const port = await workerPort();
const { devices, threads } = port.data as EngineBoot;
// Before anything is loaded here: the pool's workers take as long to start as this one.
const place = await platform();
const workers = devices.includes('cpu')
  ? Array.from({ length: threads - 1 }, () => place.spawnWorker('cpu-worker', undefined))
  : undefined;

let cpu: Backend | undefined;

/** Only the code of devices that are used is loaded. */
async function backendFor(device: DeviceName): Promise<Backend> {
  switch (device) {
    case 'reference':
      return (await import('../backend/reference/backend.ts')).referenceBackend;
    case 'gpu':
      return (await import('../backend/gpu/backend.ts')).gpuBackend();
    case 'cpu':
      cpu ??= (await import('../backend/cpu/backend.ts')).cpuBackend({ workers });
      return cpu;
  }
}

const { runEngine } = await import('./loop.ts');
await runEngine(port, backendFor);
