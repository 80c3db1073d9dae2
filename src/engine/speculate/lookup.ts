/**
 * Drafts by looking the last few tokens up in what was said before: what followed them then may follow again. Costs next to
 * nothing, and pays where an answer quotes its prompt or itself.
 */

import type { Request } from '../request.ts';
import type { DraftAsk, DraftSource } from './source.ts';

/** How many of the last tokens are looked up: the longest first. A single token tells too little of what follows. */
const LONGEST = 4;
const SHORTEST = 2;

export class LookupDrafts implements DraftSource {
  /** Each request's tokens in one piece. */
  readonly #histories = new WeakMap<Request, History>();

  async propose(asks: readonly DraftAsk[]): Promise<readonly (readonly number[])[]> {
    return asks.map(({ request, most }) => lookUp(this.#history(request), most));
  }

  #history(request: Request): Int32Array {
    let history = this.#histories.get(request);
    if (history === undefined) {
      history = new History(request.prompt);
      this.#histories.set(request, history);
    }
    return history.with(request.answer, request.prompt.length);
  }
}

class History {
  #tokens: Int32Array;
  #length: number;

  constructor(prompt: Int32Array) {
    this.#tokens = new Int32Array(prompt.length + 256);
    this.#tokens.set(prompt);
    this.#length = prompt.length;
  }

  /** With all of the answer; valid until the next call. */
  with(answer: readonly number[], promptLength: number): Int32Array {
    const length = promptLength + answer.length;
    if (length > this.#tokens.length) {
      const longer = new Int32Array(2 * length);
      longer.set(this.#tokens);
      this.#tokens = longer;
    }
    for (; this.#length < length; this.#length++) {
      this.#tokens[this.#length] = answer[this.#length - promptLength] as number;
    }
    return this.#tokens.subarray(0, length);
  }
}

/**
 * What followed the latest earlier place of the longest run of last tokens that is found again, at most `most` tokens; none where
 * not even the last two are.
 */
export function lookUp(tokens: Int32Array, most: number): number[] {
  const { length } = tokens;
  let best = 0;
  let bestLength = SHORTEST - 1;
  // `end`: the place behind an earlier run; the last place that has something behind it comes first.
  for (let end = length - 1; end >= SHORTEST && bestLength < LONGEST; end--) {
    let same = 0;
    while (same < LONGEST && same < end && tokens[end - 1 - same] === tokens[length - 1 - same]) same++;
    if (same <= bestLength) continue;
    bestLength = same;
    best = end;
  }
  return bestLength < SHORTEST ? [] : [...tokens.subarray(best, Math.min(length, best + most))];
}
