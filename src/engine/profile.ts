/** Profiles a run of the graph: brings a timeline to where the run is, and adds up what the backend says of its parts. */

import type { Executable, KernelTime, RunProfile, Step } from '../backend/backend.ts';
import type { Mode } from '../backend/kernel.ts';
import type { Timeline } from './kv-cache.ts';

export interface ProfileRequest {
  /** `prompt`: all of them as rows of a prompt. `step`: the last one as a decoded token after the others. */
  readonly tokens: Int32Array;
  readonly rows: Mode;
  readonly repetitions: number;
}

/**
 * @param timeline an empty one with room for the tokens
 * @param promptRows rows of a prompt that are computed at once
 * @returns undefined where the backend tells nothing
 */
export async function profileRows(
  { tokens, rows, repetitions }: ProfileRequest,
  {
    executable,
    timeline,
    promptRows,
  }: { readonly executable: Executable; readonly timeline: Timeline; readonly promptRows: number },
): Promise<RunProfile | undefined> {
  if (executable.profile === undefined) return undefined;
  const { length } = tokens;
  const before = rows === 'step' ? length - 1 : 0;
  const atOnce = rows === 'step' ? 1 : promptRows;
  timeline.reserve(length);
  const stepOf = (first: number, count: number, mode: Mode): Step => {
    const counting = Int32Array.from({ length: count }, (_, row) => row);
    return {
      mode,
      tokens: tokens.subarray(first, first + count),
      positions: counting.map((row) => first + row),
      sequences: new Int32Array(count),
      pageTables: [timeline.pageTable],
      // As in a generation: of all rows only the last one's are wanted.
      wanted: first + count === length ? Int32Array.of(count - 1) : new Int32Array(0),
    };
  };
  for (let first = 0; first < before; first += promptRows) {
    await executable.run(stepOf(first, Math.min(promptRows, before - first), 'prompt'));
  }
  const profiles: RunProfile[] = [];
  for (let first = before; first < length; first += atOnce) {
    profiles.push(await executable.profile(stepOf(first, Math.min(atOnce, length - first), rows), repetitions));
  }
  return addProfiles(profiles);
}

/** Runs one after the other as one. */
export function addProfiles(profiles: readonly RunProfile[]): RunProfile {
  const sum = (of: (profile: RunProfile) => number) => profiles.reduce((total, profile) => total + of(profile), 0);
  const kernels = new Map<string, KernelTime>();
  for (const profile of profiles) {
    for (const { label, dispatches, ns } of profile.kernels ?? []) {
      const other = kernels.get(label) ?? { dispatches: 0, ns: 0 };
      kernels.set(label, { label, dispatches: other.dispatches + dispatches, ns: other.ns + ns });
    }
  }
  return {
    dispatches: sum(({ dispatches }) => dispatches),
    encodeMs: sum(({ encodeMs }) => encodeMs),
    runMs: sum(({ runMs }) => runMs),
    ...(profiles.every((profile) => profile.kernels !== undefined)
      ? { kernels: [...kernels.values()].sort((a, b) => b.ns - a.ns) }
      : {}),
  };
}
