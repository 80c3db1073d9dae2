/**
 * A step that checks drafts: of each request the last token's row and one for each draft, and how many of them count. The rows'
 * tokens are drawn as in any other step, with the request's own random numbers, so that drafts never change what is said.
 */

import type { Step } from '../../backend/backend.ts';
import type { Request } from '../request.ts';

/** A request's rows of a step: its last token, then what may come next. */
export interface Turn {
  readonly request: Request;
  readonly drafts: readonly number[];
}

/**
 * The rows of all turns, every one of them wanted.
 * @param tokenOf what a request's first row is of
 */
export function verifyStep(turns: readonly Turn[], tokenOf: (request: Request) => number): Step {
  const rows = turns.reduce((sum, { drafts }) => sum + 1 + drafts.length, 0);
  const tokens = new Int32Array(rows);
  const positions = new Int32Array(rows);
  const sequences = new Int32Array(rows);
  let row = 0;
  for (const [sequence, { request, drafts }] of turns.entries()) {
    for (let index = 0; index <= drafts.length; index++, row++) {
      tokens[row] = index === 0 ? tokenOf(request) : (drafts[index - 1] as number);
      positions[row] = request.timeline.length + index;
      sequences[row] = sequence;
    }
  }
  return {
    mode: 'step',
    tokens,
    positions,
    sequences,
    pageTables: turns.map(({ request }) => request.timeline.pageTable),
    wanted: Int32Array.from({ length: rows }, (_, index) => index),
  };
}

/**
 * Goes through a turn's rows as long as each next one was run on the token that was drawn from the one before.
 * @param draw takes the token drawn from a row; undefined: nothing more is wanted
 * @returns how many drafts came true
 */
export function acceptDrafts(drafts: readonly number[], draw: (row: number) => number | undefined): number {
  let row = 0;
  while (draw(row) === drafts[row] && row < drafts.length) row++;
  return row;
}

/**
 * How many tokens may be drafted for each of so many requests.
 * @param wanted by request, the most that are of use to it
 * @param rows of the step
 */
export function shareRows(wanted: readonly number[], rows: number): number[] {
  const each = Math.max(0, Math.floor(rows / wanted.length) - 1);
  return wanted.map((most) => Math.max(0, Math.min(most, each)));
}
