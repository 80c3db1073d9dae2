/** How long a run's dispatches take where experts are split: those for experts in slots as they run, as often as they run, the others by themselves. */

import type { Mode } from '../kernel.ts';
import type { RunShape } from './builder.ts';
import type { Gpu } from './device.ts';
import type { GpuProgram } from './layout.ts';
import type { DispatchTime } from './profile.ts';
import type { Recorder } from './recorder.ts';
import type { SplitRun } from './split-run.ts';
import { PassTimer } from './timestamps.ts';

/** What the passes of a layer's experts in slots are called, all of them together. */
const SLOTS = 'experts in slots';

/**
 * @param given.run runs the step as it is; which experts have slots, and which pass through them, shows only then
 * @returns undefined where the device has no timestamps
 */
export async function timeSplit(given: {
  readonly gpu: Gpu;
  readonly recorder: Recorder;
  readonly program: GpuProgram;
  readonly split: SplitRun;
  readonly mode: Mode;
  readonly shape: RunShape;
  readonly run: () => Promise<unknown>;
}): Promise<DispatchTime[] | undefined> {
  const { gpu, recorder, program, split, mode, shape, run } = given;
  const timer = PassTimer.make(gpu.device);
  if (timer === undefined) return undefined;
  const layers: number[] = [];
  try {
    split.timestamps = (layer) => {
      const writes = timer.next();
      if (writes !== undefined) layers.push(layer);
      return writes;
    };
    await run();
    const slots = new Map<number, number>();
    for (const [index, ns] of (await timer.read()).entries()) {
      const layer = layers[index] as number;
      slots.set(layer, (slots.get(layer) ?? 0) + ns);
    }
    const pauses = program.pauses[mode];
    const inSlots = new Set(
      pauses.flatMap(({ asks, joins }) => program.dispatches[mode].slice(asks, joins).map(({ label }) => label)),
    );
    const times = (await recorder.time(mode, shape)) ?? [];
    return [
      ...times.filter(({ label }) => !inSlots.has(label)),
      ...pauses.map(({ layer }) => ({ label: `layers.${layer}.${SLOTS}`, ns: slots.get(layer) ?? 0 })),
    ];
  } finally {
    split.timestamps = undefined;
    timer.destroy();
  }
}
