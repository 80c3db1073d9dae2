/**
 * Token texts → ids, by open addressing over UTF-16 units. A part of a string is looked up without making it: that lets
 * a vocabulary of 280,000 merges be checked in a fraction of the time that a `Map` of strings takes.
 */
export class TextTable {
  readonly #texts: readonly string[];
  /** The id in each slot; −1: empty. */
  readonly #ids: Int32Array;
  readonly #hashes: Int32Array;

  /** Of two tokens with one text the first is found. */
  constructor(texts: readonly string[]) {
    const slots = 2 ** (Math.ceil(Math.log2(texts.length + 1)) + 1);
    this.#texts = texts;
    this.#ids = new Int32Array(slots).fill(-1);
    this.#hashes = new Int32Array(slots);
    for (let id = 0; id < texts.length; id++) {
      const text = texts[id]!;
      const hash = hashOf(text, 0, text.length, -1);
      const slot = this.#slot(hash, text, 0, text.length, -1);
      if (this.#ids[slot] !== -1) continue;
      this.#ids[slot] = id;
      this.#hashes[slot] = hash;
    }
  }

  /** The id of `text` from `start` to `end`, the unit at `without` left out; −1: there is no such token. */
  find(text: string, start = 0, end = text.length, without = -1): number {
    return this.#ids[this.#slot(hashOf(text, start, end, without), text, start, end, without)]!;
  }

  #slot(hash: number, text: string, start: number, end: number, without: number): number {
    const mask = this.#ids.length - 1;
    let slot = (hash ^ (hash >>> 15)) & mask;
    while (this.#ids[slot] !== -1) {
      if (this.#hashes[slot] === hash && equals(this.#texts[this.#ids[slot]!]!, text, start, end, without)) break;
      slot = (slot + 1) & mask;
    }
    return slot;
  }
}

function hashOf(text: string, start: number, end: number, without: number): number {
  let hash = 0x811c9dc5 | 0;
  for (let at = start; at < end; at++) {
    if (at !== without) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  }
  return hash;
}

function equals(token: string, text: string, start: number, end: number, without: number): boolean {
  const left = without >= start && without < end ? 1 : 0;
  if (token.length !== end - start - left) return false;
  for (let at = start, i = 0; at < end; at++) {
    if (at !== without && token.charCodeAt(i++) !== text.charCodeAt(at)) return false;
  }
  return true;
}
