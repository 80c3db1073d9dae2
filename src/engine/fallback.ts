/** What `auto` does when a GPU that a plan was made for fails while the model is loaded: the CPU serves, and says why. */

import { DeviceLostError, InternalError, OutOfMemoryError, Refusal } from '../errors.ts';
import { gpuUse, reasonOf } from '../plan/devices.ts';
import type { Plan, PlanOptions } from '../plan/plan.ts';

export interface Start<Engine> {
  readonly options: PlanOptions;
  readonly plan: Plan;
  /** Gets a model ready as a plan says. */
  start(plan: Plan): Promise<Engine>;
  /** The plan where the GPU is not to be had. */
  planWithoutGpu(reason: string): Plan;
}

/** What was started, and the plan that it follows. */
export interface Started<Engine> {
  readonly engine: Engine;
  readonly plan: Plan;
}

/** @throws what `start` raises, where the CPU would do no better or was not offered */
export async function startOrFallBack<Engine>(given: Start<Engine>): Promise<Started<Engine>> {
  const { plan } = given;
  try {
    return { engine: await given.start(plan), plan };
  } catch (error) {
    if (gpuUse(given.options) !== 'auto' || plan.device !== 'gpu' || !isOfDevice(error)) throw error;
    const instead = given.planWithoutGpu(reasonOf(error));
    return { engine: await given.start(instead), plan: instead };
  }
}

/** Whether it has to do with the device, and neither with the file nor with what was asked for. */
function isOfDevice(error: unknown): error is Error {
  return [OutOfMemoryError, DeviceLostError, Refusal, InternalError].some((kind) => error instanceof kind);
}
