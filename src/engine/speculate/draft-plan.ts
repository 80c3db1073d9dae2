/** A model that drafts for another one, before it is loaded: how it is planned, and what the engine's worker is sent of it. */

import type { Graph } from '../../model/graph.ts';
import type { ReadModel } from '../../model/read-model.ts';
import { programsOf } from '../../plan/place.ts';
import type { Plan, PlanOptions } from '../../plan/plan.ts';
import type { DraftModel } from '../protocol.ts';

/** A small model is quick anywhere: it runs on the CPU, beside whatever the other one runs on, for as many and as long sessions. */
export function draftOptions({
  device,
  threads,
  context,
  sessions,
  arenaBytes,
  memoryBytes,
}: PlanOptions): PlanOptions {
  return { device: device === 'reference' ? 'reference' : 'cpu', threads, context, sessions, arenaBytes, memoryBytes };
}

/** @param firstSource which of the sources that the worker reads is its first */
export function draftModel(
  { plan, model, graph }: { readonly plan: Plan; readonly model: ReadModel; readonly graph: Graph },
  firstSource: number,
): DraftModel {
  const { spec, weights } = model;
  return { plan, programs: programsOf(plan), spec, graph, weights: [...weights.values()], firstSource };
}
