/** The entry file of a worker that puts weights into planes while a model loads. */

import { recordError } from '../../errors.ts';
import { workerPort } from '../../platform/worker-port.ts';
import { gpuFormat } from './formats/index.ts';
import { type GpuFormat, toPlanes } from './formats.ts';
import type { PlaneAnswer, PlaneTask } from './plane-pool.ts';

const port = await workerPort();
port.onMessage((message) => {
  const { task, format, columns, source, target } = message as PlaneTask;
  const answer = (error?: unknown) =>
    port.postMessage({ task, ...(error === undefined ? {} : { error: recordError(error) }) } satisfies PlaneAnswer);
  try {
    toPlanes(gpuFormat(format) as GpuFormat, columns, source, target);
    answer();
  } catch (error) {
    answer(error);
  }
});
