/** Finds special tokens in text: the longest that begins leftmost, control tokens only where they are asked for. */

import type { TextRanges } from './types.ts';
import { TokenType, type Vocabulary } from './vocabulary.ts';

interface Node {
  /** By UTF-16 unit. */
  readonly children: Map<number, Node>;
  id: number;
}

/** A stretch of text without special tokens, or one special token. */
export type Fragment = { readonly text: string } | { readonly id: number };

export class SpecialTokens {
  readonly #root: Node = { children: new Map(), id: -1 };
  readonly #types: Uint8Array;

  constructor({ texts, types }: Vocabulary) {
    this.#types = types;
    for (let id = 0; id < texts.length; id++) {
      const type = types[id]!;
      if (type !== TokenType.control && type !== TokenType.unknown && type !== TokenType.userDefined) continue;
      if (texts[id] !== '') this.#add(texts[id]!, id);
    }
  }

  /**
   * Cuts `text` at its special tokens. User-defined tokens are always found; control tokens only with `control`, and
   * never where a character of theirs lies in `content`.
   */
  split(text: string, { control, content = [] }: { control: boolean; content?: TextRanges }): Fragment[] {
    const fragments: Fragment[] = [];
    const taken = new RangeCursor(content);
    let done = 0;
    for (let at = 0; at < text.length; ) {
      const found = this.#longest(text, at, control ? taken.clearFrom(at) : at);
      if (found === undefined) {
        at++;
        continue;
      }
      if (at > done) fragments.push({ text: text.slice(done, at) });
      fragments.push({ id: found.id });
      at = found.end;
      done = at;
    }
    if (done < text.length) fragments.push({ text: done === 0 ? text : text.slice(done) });
    return fragments;
  }

  /** The longest token at `at`; a control token only when it ends by `controlEnd`. */
  #longest(text: string, at: number, controlEnd: number): { id: number; end: number } | undefined {
    let best: { id: number; end: number } | undefined;
    let node = this.#root.children.get(text.charCodeAt(at));
    for (let end = at + 1; node !== undefined; end++) {
      if (node.id >= 0 && (this.#types[node.id] === TokenType.userDefined || end <= controlEnd)) {
        best = { id: node.id, end };
      }
      node = end < text.length ? node.children.get(text.charCodeAt(end)) : undefined;
    }
    return best;
  }

  #add(text: string, id: number): void {
    let node = this.#root;
    for (let i = 0; i < text.length; i++) {
      const unit = text.charCodeAt(i);
      let child = node.children.get(unit);
      if (child === undefined) {
        child = { children: new Map(), id: -1 };
        node.children.set(unit, child);
      }
      node = child;
    }
    if (node.id < 0) node.id = id;
  }
}

/** Walks ranges as the offset asked for grows. */
class RangeCursor {
  readonly #ranges: TextRanges;
  #at = 0;

  constructor(ranges: TextRanges) {
    this.#ranges = ranges;
  }

  /** How far text from `offset` on lies outside the ranges; `offset` itself when it lies in one. */
  clearFrom(offset: number): number {
    while (this.#at < this.#ranges.length && this.#ranges[this.#at + 1]! <= offset) this.#at += 2;
    if (this.#at >= this.#ranges.length) return Number.POSITIVE_INFINITY;
    return Math.max(offset, this.#ranges[this.#at]!);
  }
}
