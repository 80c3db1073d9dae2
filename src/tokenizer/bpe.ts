/**
 * Byte-level byte-pair encoding (Sennrich et al. 2016, as GPT-2 uses it): a word's bytes are merged pair by pair, the
 * pair that was learnt first before all others, until no learnt pair is left. Time grows as n log n with a word's length.
 */

import { CorruptFileError, Refusal } from '../errors.ts';
import { byteCharacters, toByteText } from './byte-level.ts';
import { MinHeap } from './min-heap.ts';
import type { PreTokenizer } from './pre-tokenizer.ts';
import { splitWords } from './pre-tokenizer.ts';
import { TextTable } from './text-table.ts';
import type { Vocabulary } from './vocabulary.ts';

/** Words up to this many UTF-16 units are remembered, and so many of them. */
const CACHED_LENGTH = 64;
const CACHED_WORDS = 20_000;

/** (left id, right id) → rank and merged id, by open addressing: 280,000 pairs fit in a few megabytes and milliseconds. */
class PairTable {
  readonly #lefts: Int32Array;
  readonly #rights: Int32Array;
  readonly #ranks: Int32Array;
  readonly #results: Int32Array;
  readonly #shift: number;

  constructor(pairs: number) {
    const bits = Math.max(4, Math.ceil(Math.log2(pairs + 1)) + 1);
    this.#shift = 32 - bits;
    this.#lefts = new Int32Array(2 ** bits).fill(-1);
    this.#rights = new Int32Array(2 ** bits);
    this.#ranks = new Int32Array(2 ** bits);
    this.#results = new Int32Array(2 ** bits);
  }

  /** Keeps the first of two equal pairs. */
  add(left: number, right: number, rank: number, result: number): void {
    const slot = this.#slot(left, right);
    if (this.#lefts[slot] !== -1) return;
    this.#lefts[slot] = left;
    this.#rights[slot] = right;
    this.#ranks[slot] = rank;
    this.#results[slot] = result;
  }

  /** The slot of a pair, or −1: a key to {@link rank} and {@link result}. */
  find(left: number, right: number): number {
    const slot = this.#slot(left, right);
    return this.#lefts[slot] === -1 ? -1 : slot;
  }

  rank(slot: number): number {
    return this.#ranks[slot]!;
  }

  result(slot: number): number {
    return this.#results[slot]!;
  }

  #slot(left: number, right: number): number {
    const mask = this.#lefts.length - 1;
    let slot = Math.imul(Math.imul(left, 0x9e3779b1) ^ right, 0x85ebca6b) >>> this.#shift;
    while (this.#lefts[slot] !== -1 && (this.#lefts[slot] !== left || this.#rights[slot] !== right)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }
}

/** Encodes text that holds no special tokens. */
export class BytePairEncoder {
  readonly #vocabulary: Vocabulary;
  readonly #preTokenizer: PreTokenizer;
  readonly #table: TextTable;
  readonly #pairs: PairTable;
  /** The id of each byte; −1 where the vocabulary has none. */
  readonly #byteIds: Int32Array;
  readonly #utf8 = new TextEncoder();
  readonly #heap = new MinHeap();
  readonly #cache = new Map<string, readonly number[]>();
  #next = new Int32Array(256);
  #previous = new Int32Array(256);

  /** @throws CorruptFileError `corrupt_file` when a merge names a token that does not exist. */
  constructor(vocabulary: Vocabulary, preTokenizer: PreTokenizer) {
    this.#vocabulary = vocabulary;
    this.#preTokenizer = preTokenizer;
    this.#table = new TextTable(vocabulary.texts);
    this.#pairs = readMerges(vocabulary, this.#table);
    this.#byteIds = Int32Array.from(byteCharacters, (character) => this.#table.find(character));
  }

  /** Appends the ids of `text`. */
  encode(text: string, into: number[]): void {
    for (const word of splitWords(text, this.#preTokenizer)) {
      if (word.length > CACHED_LENGTH) {
        for (const id of this.#encodeWord(word)) into.push(id);
        continue;
      }
      let ids = this.#cache.get(word);
      if (ids === undefined) {
        ids = Array.from(this.#encodeWord(word));
        if (this.#cache.size >= CACHED_WORDS) this.#cache.clear();
        this.#cache.set(word, ids);
      }
      for (let i = 0; i < ids.length; i++) into.push(ids[i]!);
    }
  }

  #encodeWord(word: string): Iterable<number> {
    const bytes = this.#utf8.encode(word);
    if (this.#preTokenizer.ignoreMerges) {
      const whole = this.#table.find(toByteText(bytes));
      if (whole >= 0) return [whole];
    }
    const symbols = Int32Array.from(bytes, (byte) => this.#byteId(byte));
    return symbols.subarray(0, this.#merge(symbols));
  }

  #byteId(byte: number): number {
    const id = this.#byteIds[byte]!;
    if (id >= 0) return id;
    const unknown = this.#vocabulary.ids.unknown_token_id;
    if (unknown !== undefined) return unknown;
    throw new Refusal(
      `${this.#vocabulary.where}: the vocabulary has no token for the byte 0x${byte.toString(16).padStart(2, '0')} and no ` +
        'unknown token (tokenizer.ggml.unknown_token_id); leave the characters that need it out of the text',
      { data: { byte } },
    );
  }

  /** Merges in place; returns how many symbols are left at the front. */
  #merge(symbols: Int32Array): number {
    const length = symbols.length;
    if (length < 2) return length;
    if (this.#next.length < length) {
      this.#next = new Int32Array(2 * length);
      this.#previous = new Int32Array(2 * length);
    }
    const next = this.#next;
    const previous = this.#previous;
    const pairs = this.#pairs;
    const heap = this.#heap;
    heap.clear();
    for (let at = 0; at < length; at++) {
      next[at] = at + 1;
      previous[at] = at - 1;
      if (at + 1 < length) {
        const slot = pairs.find(symbols[at]!, symbols[at + 1]!);
        if (slot >= 0) heap.push(pairs.rank(slot) * length + at);
      }
    }
    for (let entry = heap.pop(); entry >= 0; entry = heap.pop()) {
      const at = entry % length;
      const right = next[at]!;
      // An entry is out of date when either symbol of its pair has been merged since.
      if (symbols[at] === -1 || right >= length) continue;
      const slot = pairs.find(symbols[at]!, symbols[right]!);
      if (slot < 0 || pairs.rank(slot) * length + at !== entry) continue;
      symbols[at] = pairs.result(slot);
      symbols[right] = -1;
      const after = next[right]!;
      next[at] = after;
      if (after < length) {
        previous[after] = at;
        const pair = pairs.find(symbols[at]!, symbols[after]!);
        if (pair >= 0) heap.push(pairs.rank(pair) * length + at);
      }
      const before = previous[at]!;
      if (before >= 0) {
        const pair = pairs.find(symbols[before]!, symbols[at]!);
        if (pair >= 0) heap.push(pairs.rank(pair) * length + before);
      }
    }
    let kept = 0;
    for (let at = 0; at < length; at = next[at]!) symbols[kept++] = symbols[at]!;
    return kept;
  }
}

function readMerges({ merges, where }: Vocabulary, table: TextTable): PairTable {
  const pairs = new PairTable(merges.length);
  for (let rank = 0; rank < merges.length; rank++) {
    const merge = merges[rank]!;
    const gap = merge.indexOf(' ', 1);
    const left = gap < 0 ? -1 : table.find(merge, 0, gap);
    const right = gap < 0 ? -1 : table.find(merge, gap + 1);
    const result = gap < 0 ? -1 : table.find(merge, 0, merge.length, gap);
    if (left < 0 || right < 0 || result < 0) {
      const [before, after] = [merge.slice(0, gap), merge.slice(gap + 1)];
      const missing = left < 0 ? before : right < 0 ? after : before + after;
      throw new CorruptFileError(
        gap < 0
          ? `${where}: tokenizer.ggml.merges[${rank}] is '${merge}'; expected two tokens with a space between`
          : `${where}: tokenizer.ggml.merges[${rank}] is '${merge}', but the vocabulary has no token '${missing}'`,
        { data: { key: 'tokenizer.ggml.merges', rank, merge } },
      );
    }
    pairs.add(left, right, rank, result);
  }
  return pairs;
}
