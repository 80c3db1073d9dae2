/** The interface of what drafts tokens, and what its kinds share: rows that are fed, and a chain of likeliest tokens. */

import type { Step } from '../../backend/backend.ts';
import type { Mode } from '../../backend/kernel.ts';
import type { Timeline } from '../kv-cache.ts';
import type { Request } from '../request.ts';
import { argmax } from '../top-k.ts';

/** A request that drafts are wanted for: all of its tokens but the last are in its timeline, with pages for `most` more. */
export interface DraftAsk {
  readonly request: Request;
  /** Tokens to draft, at least 1. */
  readonly most: number;
}

/** Guesses the tokens that come next. What it guesses is checked: it decides how fast an answer comes, never what it says. */
export interface DraftSource {
  /** @returns by ask the tokens drafted, in order; none where nothing is to be guessed from */
  propose(asks: readonly DraftAsk[]): Promise<readonly (readonly number[])[]>;
  /**
   * The model has run these rows, and its next run is not sent before this has settled.
   * @param timelines by sequence of the step
   */
  ran?(step: Step, timelines: readonly Timeline[]): Promise<void>;
  dispose?(): Promise<void>;
}

/** Rows that bring a drafter up to date for a request; after the last one comes the first draft. */
export interface DraftRows {
  readonly pageTable: Int32Array;
  /** The first row's position. */
  readonly first: number;
  /** At least one. */
  readonly tokens: ArrayLike<number>;
  readonly most: number;
}

/** A step over rows of several sequences; the last row of each is wanted. */
export function stepOver(mode: Mode, sequences: readonly Pick<DraftRows, 'pageTable' | 'first' | 'tokens'>[]): Step {
  const rows = sequences.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const step = {
    mode,
    tokens: new Int32Array(rows),
    positions: new Int32Array(rows),
    sequences: new Int32Array(rows),
    pageTables: sequences.map(({ pageTable }) => pageTable),
    wanted: new Int32Array(sequences.length),
  };
  let row = 0;
  for (const [sequence, { tokens, first }] of sequences.entries()) {
    for (let index = 0; index < tokens.length; index++, row++) {
      step.tokens[row] = tokens[index] as number;
      step.positions[row] = first + index;
      step.sequences[row] = sequence;
    }
    step.wanted[sequence] = row - 1;
  }
  return step;
}

/**
 * Drafts the likeliest token after each request's rows, then the likeliest after that, and so on: one run a token, of all
 * requests together.
 * @param run gives [wanted, vocabulary] logits; `from` is, by row, the row of the run before that it goes on from, and absent of
 * the first
 * @returns by request
 */
export async function draftChain(
  requests: readonly DraftRows[],
  vocabulary: number,
  run: (step: Step, from?: Int32Array) => Promise<Float32Array>,
): Promise<number[][]> {
  const drafts = requests.map((): number[] => []);
  let active = requests.map((rows, index) => ({ rows, own: drafts[index] as number[] }));
  let step = stepOver('step', requests);
  let from: Int32Array | undefined;
  while (active.length > 0) {
    const logits = await run(step, from);
    for (const [index, { own }] of active.entries()) {
      own.push(argmax(logits.subarray(index * vocabulary, (index + 1) * vocabulary)));
    }
    const { wanted } = step;
    const going = active.map(({ rows, own }) => own.length < rows.most);
    from = wanted.filter((_, index) => going[index]);
    active = active.filter((_, index) => going[index]);
    step = stepOver(
      'step',
      active.map(({ rows: { pageTable, first, tokens }, own }) => ({
        pageTable,
        first: first + tokens.length + own.length - 1,
        tokens: own.slice(-1),
      })),
    );
  }
  return drafts;
}

/** Cuts a list where so many rows are full; none has more than that. */
export function inRuns<Item>(items: readonly Item[], rowsOf: (item: Item) => number, most: number): Item[][] {
  const runs: Item[][] = [];
  let room = 0;
  for (const item of items) {
    const rows = rowsOf(item);
    if (rows > room) {
      runs.push([]);
      room = most;
    }
    runs.at(-1)?.push(item);
    room -= rows;
  }
  return runs;
}
