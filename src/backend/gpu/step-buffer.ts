/**
 * The one buffer that changes from run to run. The host writes it once a submission, before any dispatch of it is recorded
 * to read it, and never while it may be read.
 */

import { PAGE_ROWS, type Step } from '../backend.ts';
import { MAX_STEP_ROWS } from '../kernel.ts';

/** Offsets in words (u32). */
export interface StepLayout {
  /** Rows of the run. */
  readonly rows: number;
  /** Rows whose logits are wanted. */
  readonly wantedCount: number;
  /** [rows] */
  readonly tokens: number;
  /** [rows] */
  readonly positions: number;
  /** [rows] Where the page table of the row's sequence begins, counted from `pages`. */
  readonly pageStarts: number;
  /** [wanted] Row numbers. */
  readonly wanted: number;
  /** Page tables of the run's sequences, one after the other. */
  readonly pages: number;
  /** Words in all. */
  readonly words: number;
}

export function stepLayout(rows: number, wanted: number, context: number): StepLayout {
  const tokens = 4;
  const positions = tokens + rows;
  const pageStarts = positions + rows;
  const wantedAt = pageStarts + rows;
  const pages = wantedAt + wanted;
  return {
    rows: 0,
    wantedCount: 1,
    tokens,
    positions,
    pageStarts,
    wanted: wantedAt,
    pages,
    words: pages + MAX_STEP_ROWS * Math.ceil(context / PAGE_ROWS),
  };
}

/** Writes a step (already checked) into `words`; returns how many of them matter. */
export function writeStep(step: Step, layout: StepLayout, words: Uint32Array): number {
  const { tokens, positions, sequences, pageTables, wanted } = step;
  words[layout.rows] = tokens.length;
  words[layout.wantedCount] = wanted.length;
  words.set(tokens, layout.tokens);
  words.set(positions, layout.positions);
  words.set(wanted, layout.wanted);
  let used = 0;
  const starts = pageTables.map((table) => {
    const start = used;
    words.set(table, layout.pages + start);
    used += table.length;
    return start;
  });
  for (let row = 0; row < tokens.length; row++) {
    words[layout.pageStarts + row] = starts[sequences[row] as number] as number;
  }
  return layout.pages + used;
}
