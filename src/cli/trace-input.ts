/** Routing traces that flags name by their folders, read whole. */

import { join } from 'node:path';
import { SourceError, UsageError } from '../errors.ts';
import { idsOf, usesOf } from '../experts/given-routing.ts';
import { IDS_FILE, RoutingTrace, SHAPE_FILE } from '../experts/trace.ts';
import type { GivenTrace } from '../plan/routing.ts';
import { nodePlatform } from '../platform/node.ts';

/** @throws UsageError `usage` for no path; SourceError `source` and CorruptFileError `corrupt_file` for what is no trace */
export async function openTrace(path: string): Promise<RoutingTrace> {
  // Else it would be the trace of the folder that one happens to be in.
  if (path === '') throw new UsageError('the path of the trace is empty; give its folder');
  try {
    return await RoutingTrace.open(await nodePlatform.openSource(join(path, SHAPE_FILE)));
  } catch (error) {
    if (!(error instanceof SourceError)) throw error;
    throw new SourceError(`${error.message}; a trace is a folder with ${SHAPE_FILE} and ${IDS_FILE}`, {
      data: error.data,
      cause: error,
    });
  }
}

async function fromTrace<Result>(path: string, read: (trace: RoutingTrace) => Promise<Result>): Promise<Result> {
  const trace = await openTrace(path);
  try {
    return await read(trace);
  } finally {
    await trace.close();
  }
}

/**
 * How often each expert of a trace is used, [layers][experts].
 * @throws as {@link openTrace}
 */
export function readUses(path: string): Promise<readonly Float64Array[]> {
  return fromTrace(path, usesOf);
}

/**
 * The routing of a trace, for a model's rows to take.
 * @throws as {@link openTrace}
 */
export function readRouting(path: string): Promise<GivenTrace> {
  return fromTrace(path, async (trace) => {
    const { layers, experts, used } = trace.shape;
    return { layers, experts, used, ids: await idsOf(trace) };
  });
}
