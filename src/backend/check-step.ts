/** What a step must be before any of it is written to shared memory: kernels trust every number they find there. */

import { InternalError } from '../errors.ts';
import type { Graph, Operation } from '../model/graph.ts';
import type { Plan } from '../plan/plan.ts';
import { drawnIn, PAGE_ROWS, type Step } from './backend.ts';

/**
 * @param slots of which a token may be the one drawn last
 * @throws InternalError `internal` for a row that the plan has no place for.
 */
export function checkStep(step: Step, plan: Plan, vocabulary: number, slots = 0): void {
  const { mode, tokens, positions, sequences, pageTables, wanted } = step;
  const rows = tokens.length;
  if (rows === 0 || rows > plan.maxRows[mode]) {
    throw new InternalError(`a ${mode} run of ${rows} rows; the plan allows 1 to ${plan.maxRows[mode]}`);
  }
  if (positions.length !== rows || sequences.length !== rows) {
    throw new InternalError(`${rows} tokens with ${positions.length} positions and ${sequences.length} sequences`);
  }
  if (wanted.length > plan.maxRows.wanted) {
    throw new InternalError(`${wanted.length} rows of logits were asked for; the plan allows ${plan.maxRows.wanted}`);
  }
  for (const row of wanted) {
    if (row < 0 || row >= rows) throw new InternalError(`the logits of row ${row} were asked for, of ${rows} rows`);
  }
  checkPages(pageTables, plan);
  for (let row = 0; row < rows; row++) {
    const token = tokens[row] as number;
    const position = positions[row] as number;
    if (token < drawnIn(slots - 1) || token >= vocabulary)
      throw new InternalError(`token ${token} is outside the vocabulary of ${vocabulary}`);
    const table = pageTables[sequences[row] as number];
    if (table === undefined || position < 0 || position >= table.length * PAGE_ROWS || position >= plan.context) {
      throw new InternalError(`row ${row} is at position ${position}, which its sequence has no page for`);
    }
  }
}

/**
 * The rows that a run gets from outside, where it gets any.
 * @param operations of the run
 * @throws InternalError `internal` when they are not there, or are others than the step has
 */
export function incomingRows(
  { widths }: Graph,
  step: Step,
  operations: readonly Operation[],
): { readonly name: string; readonly rows: Float32Array } | undefined {
  const operation = operations.find(({ kind }) => kind === 'incoming');
  if (operation === undefined) return undefined;
  const name = operation.output;
  const expected = step.tokens.length * (widths[name] as number);
  if (step.incoming?.length !== expected) {
    throw new InternalError(
      `a part of the model was given ${step.incoming?.length ?? 'no'} values, expected ${expected}`,
    );
  }
  return { name, rows: step.incoming };
}

function checkPages(pageTables: readonly Int32Array[], plan: Plan): void {
  const most = Math.ceil(plan.context / PAGE_ROWS);
  if (pageTables.length > plan.maxRows.step) {
    throw new InternalError(`${pageTables.length} sequences in one run; the plan allows ${plan.maxRows.step}`);
  }
  for (const table of pageTables) {
    if (table.length > most)
      throw new InternalError(`a sequence of ${table.length} pages; a context of ${plan.context} has ${most}`);
    for (const page of table) {
      if (page < 0 || page >= plan.cache.pages)
        throw new InternalError(`page ${page} is outside the cache of ${plan.cache.pages} pages`);
    }
  }
}
