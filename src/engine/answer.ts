/** Tokens of an answer become the parts that `generate` yields: text as it completes, ended by a stop string. */

import type { StreamDecoder } from '../tokenizer/index.ts';
import { StopMatcher } from './stop.ts';
import type { Part } from './types.ts';

export class Answer {
  readonly #decoder: StreamDecoder;
  readonly #stops: StopMatcher;
  readonly #endTokens: ReadonlySet<number>;
  readonly #tokens: number[] = [];
  #text = '';
  /** What is not handed out yet. */
  #nextText = '';
  #handedOut = 0;

  constructor({
    decoder,
    stop,
    endTokens,
  }: { readonly decoder: StreamDecoder; readonly stop: readonly string[]; readonly endTokens: ReadonlySet<number> }) {
    this.#decoder = decoder;
    this.#stops = new StopMatcher(stop);
    this.#endTokens = endTokens;
  }

  /** The whole text, without what is held back. */
  get text(): string {
    return this.#text;
  }

  /** Every token, those of a stop string included. */
  get tokens(): readonly number[] {
    return this.#tokens;
  }

  /** How many tokens the parts handed out so far have carried. */
  get handedOut(): number {
    return this.#handedOut;
  }

  get stopped(): boolean {
    return this.#stops.stopped;
  }

  /** Takes tokens until one of them completes a stop string. */
  take(tokens: readonly number[]): void {
    for (const token of tokens) {
      this.#tokens.push(token);
      // An end token has no text, whatever its bytes are.
      if (!this.#endTokens.has(token)) this.#add(this.#stops.push(this.#decoder.push(token)));
      if (this.stopped) return;
    }
  }

  /** No token follows: half a character and half a stop string become text. */
  end(): void {
    this.#add(this.#stops.push(this.#decoder.flush()));
    this.#add(this.#stops.flush());
  }

  /** The text that came since the last part, with the tokens since; undefined where there is none. */
  part(): Part | undefined {
    if (this.#nextText === '') return undefined;
    const part: Part = { type: 'text', text: this.#nextText, tokens: this.#tokens.slice(this.#handedOut) };
    this.#handedOut = this.#tokens.length;
    this.#nextText = '';
    return part;
  }

  #add(text: string): void {
    this.#text += text;
    this.#nextText += text;
  }
}
