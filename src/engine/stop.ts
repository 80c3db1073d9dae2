/**
 * Stop strings over text that comes in pieces. The first one that is complete ends the text before it; what might become
 * one is held back. The outcome is the same however the text is split.
 */

export class StopMatcher {
  readonly #stops: readonly Automaton[];
  /** Text that is not given out yet. */
  #held = '';
  #stopped = false;

  /** @param stops none of them empty */
  constructor(stops: readonly string[]) {
    this.#stops = stops.map((text) => ({ text, failure: failureTable(text), matched: 0 }));
  }

  /** Whether a stop string was found; from then on nothing is given out. */
  get stopped(): boolean {
    return this.#stopped;
  }

  /** Takes a piece and returns what may be given out. */
  push(piece: string): string {
    if (this.#stopped) return '';
    if (this.#stops.length === 0) return piece;
    const text = this.#held + piece;
    for (let at = this.#held.length; at < text.length; at++) {
      const unit = text.charCodeAt(at);
      let longest = 0;
      for (const stop of this.#stops) {
        if (advance(stop, unit)) longest = Math.max(longest, stop.text.length);
      }
      if (longest > 0) {
        this.#stopped = true;
        this.#held = '';
        return text.slice(0, at + 1 - longest);
      }
    }
    const hold = Math.max(...this.#stops.map((stop) => stop.matched));
    this.#held = text.slice(text.length - hold);
    return text.slice(0, text.length - hold);
  }

  /** The text has ended: what was held back is no stop string after all. */
  flush(): string {
    const rest = this.#held;
    this.#held = '';
    return rest;
  }
}

/** A stop string being matched (Knuth, Morris, Pratt). */
interface Automaton {
  readonly text: string;
  readonly failure: Int32Array;
  /** How many of its units the text's end matches. */
  matched: number;
}

/** Takes one more unit; true when the whole stop string now ends here. */
function advance(stop: Automaton, unit: number): boolean {
  while (stop.matched > 0 && stop.text.charCodeAt(stop.matched) !== unit)
    stop.matched = stop.failure[stop.matched - 1]!;
  if (stop.text.charCodeAt(stop.matched) === unit) stop.matched++;
  return stop.matched === stop.text.length;
}

/** For each prefix the length of its longest proper suffix that is a prefix too. */
function failureTable(text: string): Int32Array {
  const table = new Int32Array(text.length);
  for (let at = 1, length = 0; at < text.length; at++) {
    while (length > 0 && text[length] !== text[at]) length = table[length - 1]!;
    if (text[length] === text[at]) length++;
    table[at] = length;
  }
  return table;
}
