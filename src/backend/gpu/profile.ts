/** Where a run's time goes on the device: what was measured of each dispatch, put together by kernel. */

import type { KernelTime, RunProfile } from '../backend.ts';

/** A dispatch as `Recorder.time` gives it. */
export interface DispatchTime {
  readonly label: string;
  readonly ns: number;
}

/** What one run took on the host. */
export interface RunTime {
  readonly dispatches: number;
  readonly encodeMs: number;
  readonly runMs: number;
}

/**
 * Repeats a run, first as it is and then timed by dispatch, and takes the median of everything.
 * @param repetitions at least 1; one run before them warms up
 */
export async function profileRun(given: {
  readonly repetitions: number;
  run(): Promise<RunTime>;
  time(): Promise<readonly DispatchTime[] | undefined>;
}): Promise<RunProfile> {
  const runs: RunTime[] = [];
  await given.run();
  for (let i = 0; i < given.repetitions; i++) runs.push(await given.run());
  const timed: (readonly DispatchTime[])[] = [];
  for (let i = 0; i < given.repetitions; i++) {
    const dispatches = await given.time();
    if (dispatches === undefined) break;
    timed.push(dispatches);
  }
  const [first] = timed;
  const kernels = first?.map(({ label }, index) => ({
    label,
    ns: median(timed.map((dispatches) => (dispatches[index] as DispatchTime).ns)),
  }));
  return {
    dispatches: (runs[0] as RunTime).dispatches,
    encodeMs: median(runs.map(({ encodeMs }) => encodeMs)),
    runMs: median(runs.map(({ runMs }) => runMs)),
    ...(kernels === undefined ? {} : { kernels: foldLayers(kernels) }),
  };
}

/** The same kernel of all layers as one, the longest first: a label's layer is left out of it. */
export function foldLayers(dispatches: readonly DispatchTime[]): KernelTime[] {
  const folded = new Map<string, { label: string; dispatches: number; ns: number }>();
  for (const { label: full, ns } of dispatches) {
    const label = full.replace(/\blayers\.\d+\./g, '');
    const kernel = folded.get(label) ?? { label, dispatches: 0, ns: 0 };
    kernel.dispatches++;
    kernel.ns += ns;
    folded.set(label, kernel);
  }
  return [...folded.values()].sort((a, b) => b.ns - a.ns);
}

/** `values` is not empty. */
function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] as number;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] as number) + upper) / 2;
}
