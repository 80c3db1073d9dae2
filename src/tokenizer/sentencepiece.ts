/**
 * SentencePiece's BPE (Kudo and Richardson 2018): characters are merged pair by pair, always the pair whose joined text
 * is the token with the best score, the leftmost first. Characters without a token become byte tokens `<0x00>` to `<0xFF>`.
 */

import { Refusal } from '../errors.ts';
import { MinHeap } from './min-heap.ts';
import { TokenType, type Vocabulary } from './vocabulary.ts';

/** How SentencePiece writes a space: U+2581. */
export const SPACE_MARK = '\u2581';

/** Encodes text that holds no special tokens; spaces must be {@link SPACE_MARK} already. */
export class SentencePieceEncoder {
  readonly #vocabulary: Vocabulary;
  /** Tokens that merges may lead to: no control, unknown or byte token is ever spelled out by text. */
  readonly #idOf = new Map<string, number>();
  /** The place of each token's score among all scores, the best first; equal scores share a place. */
  readonly #ranks: Int32Array;
  readonly #byteIds = new Int32Array(256).fill(-1);
  readonly #longest: number;
  readonly #utf8 = new TextEncoder();
  readonly #heap = new MinHeap();

  constructor(vocabulary: Vocabulary) {
    this.#vocabulary = vocabulary;
    const { texts, types, scores } = vocabulary;
    let longest = 1;
    for (let id = 0; id < texts.length; id++) {
      const type = types[id]!;
      const text = texts[id]!;
      if (type === TokenType.byte) {
        const byte = byteOf(text);
        if (byte !== undefined) this.#byteIds[byte] = id;
      } else if (type !== TokenType.control && type !== TokenType.unknown && text !== '' && !this.#idOf.has(text)) {
        this.#idOf.set(text, id);
        longest = Math.max(longest, text.length);
      }
    }
    this.#longest = longest;
    this.#ranks = ranksOf(scores!);
  }

  /** Appends the ids of `text`. */
  encode(text: string, into: number[]): void {
    const starts: number[] = [];
    for (let at = 0; at < text.length; at += text.codePointAt(at)! > 0xffff ? 2 : 1) starts.push(at);
    const length = starts.length;
    const next = Int32Array.from(starts, (_, at) => at + 1);
    const previous = Int32Array.from(starts, (_, at) => at - 1);
    const merged = new Uint8Array(length);
    // Text of an unused token that was merged on the way → where its two parts meet: it is taken apart again at the end.
    const unused = new Map<string, number>();
    const endOf = (at: number) => (next[at]! < length ? starts[next[at]!]! : text.length);
    const joined = (at: number): number | undefined => {
      const end = endOf(next[at]!);
      return end - starts[at]! > this.#longest ? undefined : this.#idOf.get(text.slice(starts[at], end));
    };
    const heap = this.#heap;
    heap.clear();
    const offer = (at: number) => {
      if (at < 0 || next[at]! >= length) return;
      const id = joined(at);
      if (id !== undefined) heap.push(this.#ranks[id]! * length + at);
    };
    for (let at = 0; at < length; at++) offer(at);
    for (let entry = heap.pop(); entry >= 0; entry = heap.pop()) {
      const at = entry % length;
      if (merged[at] === 1 || next[at]! >= length) continue;
      const id = joined(at);
      if (id === undefined || this.#ranks[id]! * length + at !== entry) continue; // a part has been merged since
      const right = next[at]!;
      if (this.#vocabulary.types[id] === TokenType.unused) {
        unused.set(this.#vocabulary.texts[id]!, starts[right]! - starts[at]!);
      }
      merged[right] = 1;
      next[at] = next[right]!;
      if (next[at]! < length) previous[next[at]!] = at;
      offer(previous[at]!);
      offer(at);
    }
    for (let at = 0; at < length; at = next[at]!) this.#emit(text.slice(starts[at], endOf(at)), unused, into);
  }

  #emit(piece: string, unused: ReadonlyMap<string, number>, into: number[]): void {
    const id = this.#idOf.get(piece);
    const cut = unused.get(piece);
    if (id !== undefined && cut === undefined) {
      into.push(id);
    } else if (cut !== undefined) {
      this.#emit(piece.slice(0, cut), unused, into);
      this.#emit(piece.slice(cut), unused, into);
    } else {
      this.#emitBytes(piece, into);
    }
  }

  #emitBytes(piece: string, into: number[]): void {
    const bytes = this.#utf8.encode(piece);
    if (bytes.every((byte) => this.#byteIds[byte]! >= 0)) {
      for (const byte of bytes) into.push(this.#byteIds[byte]!);
      return;
    }
    const unknown = this.#vocabulary.ids.unknown_token_id;
    if (unknown !== undefined) {
      into.push(unknown);
      return;
    }
    throw new Refusal(
      `${this.#vocabulary.where}: the vocabulary has no token for '${piece}', no byte tokens for it and no unknown token ` +
        '(tokenizer.ggml.unknown_token_id); leave the character out of the text',
      { data: { piece } },
    );
  }
}

/** The byte that a text like `<0x0A>` names. */
export function byteOf(text: string): number | undefined {
  const match = /^<0x([0-9A-Fa-f]{2})>$/.exec(text);
  return match === null ? undefined : Number.parseInt(match[1]!, 16);
}

function ranksOf(scores: ArrayLike<number>): Int32Array {
  const distinct = Float64Array.from(new Set(Array.from(scores)))
    .sort()
    .reverse();
  const rankOf = new Map(Array.from(distinct, (score, rank) => [score, rank]));
  return Int32Array.from(scores, (score) => rankOf.get(score)!);
}
