/** How a task is made ready to run, by its kind. */

import { InternalError } from '../../../errors.ts';
import type { Task } from '../program.ts';
import type { RunningTask, WorkerView } from '../task.ts';
import { makeAttend, makeStore } from './attention.ts';
import { makeAdd, makeConcat, makeGate, makeGlu, makeScale } from './elementwise.ts';
import { makeCombine, makeExpertsIn, makeExpertsOut, makeGatedIn, makeRoute, makeSortPairs } from './experts.ts';
import { makeEncodeHeads, makeHeadLinear } from './head-linear.ts';
import { makeLinear } from './linear.ts';
import { makeEmbed, makeEncode, makeIncoming, makeNorm, makeRope } from './rowwise.ts';

const makers: Readonly<Record<string, (task: Task, worker: WorkerView) => RunningTask>> = {
  embed: makeEmbed,
  incoming: makeIncoming,
  norm: makeNorm,
  encode: makeEncode,
  linear: makeLinear,
  encodeHeads: makeEncodeHeads,
  headLinear: makeHeadLinear,
  rope: makeRope,
  store: makeStore,
  attend: makeAttend,
  glu: makeGlu,
  gate: makeGate,
  scale: makeScale,
  add: makeAdd,
  concat: makeConcat,
  route: makeRoute,
  sortPairs: makeSortPairs,
  gatedIn: makeGatedIn,
  expertsIn: makeExpertsIn,
  expertsOut: makeExpertsOut,
  combine: makeCombine,
};

export function makeTask(task: Task, worker: WorkerView): RunningTask {
  const make = makers[task.kind];
  if (make === undefined) throw new InternalError(`no kernel runs tasks of the kind ${task.kind}`);
  return make(task, worker);
}
