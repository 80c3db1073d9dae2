/**
 * The orders that codes are put in at store time, so that the bits of 32 columns lie together and every decoder finds them
 * alike. Word i of the result holds columns 4i … 4i + 3 of a block in its four bytes; where 4-bit codes share a byte, the
 * high half belongs to the column 16 further on. Each order is there twice, for the host and for the device.
 */

import type { Reorder } from '../formats.ts';

const LOW = 0x0f0f0f0f;

/** WGSL of one half of each byte of two words, the second word's halves above the first's: the low halves at shift 0, else 4. */
const nibbles = (first: string, second: string, shift: string) => /* wgsl */ `
  let low = vec4u(0x0f0f0f0fu);
  return ((${first} >> vec4u(${shift})) & low) | (((${second} >> vec4u(${shift})) & low) << vec4u(4u));`;

/** Two groups of 32 side by side, in the low and the high halves of 32 bytes (Q4_K, Q5_K): 4 words a group. */
export const nibblePairs: Reorder = {
  apply(words, from, to) {
    for (let at = from; at < to; at += 8) splitNibbles(words, at, at, at + 4);
  },
  gather: (word) => /* wgsl */ `
  let at = w - (w & 4u);${nibbles(word('at'), word('at + 4u'), 'w & 4u')}`,
};

/** Groups 0 and 2 of a half block in 32 bytes, groups 1 and 3 in the next 32 (Q6_K): 4 words a group, groups in order. */
export const nibbleQuarters: Reorder = {
  apply: quarters,
  gather: (word) => /* wgsl */ `
  let at = w - (w & 15u) + 2u * (w & 4u) + (w & 3u);${nibbles(word('at'), word('at + 4u'), '(w & 8u) >> 1u')}`,
};

function quarters(words: Uint32Array, from: number, to: number): void {
  for (let at = from; at < to; at += 16) {
    splitNibbles(words, at, at, at + 4);
    splitNibbles(words, at + 8, at + 8, at + 12);
    // Now in the order 0, 2, 1, 3.
    for (let i = at + 4; i < at + 8; i++) {
      const second = words[i] as number;
      words[i] = words[i + 4] as number;
      words[i + 4] = second;
    }
  }
}

/** The low halves of 32 bytes to four words, the high halves to four others; the places may overlap the 32 bytes. */
function splitNibbles(words: Uint32Array, at: number, low: number, high: number): void {
  const a = words[at] as number;
  const b = words[at + 1] as number;
  const c = words[at + 2] as number;
  const d = words[at + 3] as number;
  const e = words[at + 4] as number;
  const f = words[at + 5] as number;
  const g = words[at + 6] as number;
  const h = words[at + 7] as number;
  words[low] = (a & LOW) | ((e & LOW) << 4);
  words[low + 1] = (b & LOW) | ((f & LOW) << 4);
  words[low + 2] = (c & LOW) | ((g & LOW) << 4);
  words[low + 3] = (d & LOW) | ((h & LOW) << 4);
  words[high] = ((a >>> 4) & LOW) | (e & ~LOW);
  words[high + 1] = ((b >>> 4) & LOW) | (f & ~LOW);
  words[high + 2] = ((c >>> 4) & LOW) | (g & ~LOW);
  words[high + 3] = ((d >>> 4) & LOW) | (h & ~LOW);
}

/** Groups of 16 whose byte j holds columns j and j + 8 (NVFP4), two at a time: the first to the low halves. */
export const nibbleGroups: Reorder = {
  apply: groups,
  gather: (word) => /* wgsl */ `
  let at = w - (w & 2u);${nibbles(word('at'), word('at + 2u'), '2u * (w & 2u)')}`,
};

function groups(words: Uint32Array, from: number, to: number): void {
  for (let at = from; at < to; at += 4) {
    const a = words[at] as number;
    const b = words[at + 1] as number;
    const c = words[at + 2] as number;
    const d = words[at + 3] as number;
    words[at] = (a & LOW) | ((c & LOW) << 4);
    words[at + 1] = (b & LOW) | ((d & LOW) << 4);
    words[at + 2] = ((a >>> 4) & LOW) | (c & ~LOW);
    words[at + 3] = ((b >>> 4) & LOW) | (d & ~LOW);
  }
}

const PAIRS = 0x03030303;

/**
 * 2-bit codes: byte l of 32 holds those of columns l, l + 32, l + 64, l + 96 (Q2_K, Q3_K, Q6_K). To two words a group of 32:
 * the first of columns 0–15, bits 2i of byte k for column 4i + k.
 */
export const bitPairs: Reorder = {
  apply: pairs,
  gather: (word) => /* wgsl */ `
  let at = w - (w & 7u) + 4u * (w & 1u);
  var all = vec4u();
  for (var i = 0u; i < 4u; i++) {
    all |= ((${word('at + i')} >> vec4u(w & 6u)) & vec4u(0x03030303u)) << vec4u(2u * i);
  }
  return all;`,
};

function pairs(words: Uint32Array, from: number, to: number): void {
  for (let at = from; at < to; at += 8) {
    const a = words[at] as number;
    const b = words[at + 1] as number;
    const c = words[at + 2] as number;
    const d = words[at + 3] as number;
    const e = words[at + 4] as number;
    const f = words[at + 5] as number;
    const g = words[at + 6] as number;
    const h = words[at + 7] as number;
    for (let group = 0, to = at; group < 8; group += 2, to += 2) {
      words[to] =
        ((a >>> group) & PAIRS) |
        (((b >>> group) & PAIRS) << 2) |
        (((c >>> group) & PAIRS) << 4) |
        (((d >>> group) & PAIRS) << 6);
      words[to + 1] =
        ((e >>> group) & PAIRS) |
        (((f >>> group) & PAIRS) << 2) |
        (((g >>> group) & PAIRS) << 4) |
        (((h >>> group) & PAIRS) << 6);
    }
  }
}

/**
 * Single bits: bit g of byte l of 32 belongs to column l of group g (Q3_K, Q5_K). To one word a group: bit i of byte k for
 * column 4i + k. That turns 8 × 8 bits over, in each of the four bytes of eight words.
 */
export const bitPlanes: Reorder = {
  apply: turned,
  gather: (word) => /* wgsl */ `
  let at = w - (w & 7u);
  var all = vec4u();
  for (var i = 0u; i < 8u; i++) {
    all |= ((${word('at + i')} >> vec4u(w & 7u)) & vec4u(0x01010101u)) << vec4u(i);
  }
  return all;`,
};

function turned(words: Uint32Array, from: number, to: number): void {
  for (let at = from; at < to; at += 8) {
    for (let i = 0; i < 4; i++) swapBits(words, at + i, at + i + 4, 4, LOW);
    for (let i = 0; i < 8; i += (i & 1) * 2 + 1) swapBits(words, at + i, at + i + 2, 2, 0x33333333);
    for (let i = 0; i < 8; i += 2) swapBits(words, at + i, at + i + 1, 1, 0x55555555);
  }
}

/** Swaps the bits of `mask` in the second word with those `shift` higher in the first. */
function swapBits(words: Uint32Array, first: number, second: number, shift: number, mask: number): void {
  const a = words[first] as number;
  const b = words[second] as number;
  const swap = ((a >>> shift) ^ b) & mask;
  words[first] = a ^ (swap << shift);
  words[second] = b ^ swap;
}

/** Single bits: bit j of a word belongs to column j (Q5_0, Q5_1). To bit i of byte k for column 4i + k. */
export const bitNibbles: Reorder = {
  apply: spread,
  gather: (word) => /* wgsl */ `
  let bits = ${word('w')};
  var all = vec4u();
  for (var i = 0u; i < 8u; i++) {
    // Times 1 + 2^7 + 2^14 + 2^21: bit k comes to bit 8k, among others that are left out.
    let four = (bits >> vec4u(4u * i)) & vec4u(15u);
    all |= ((four * vec4u(0x00204081u)) & vec4u(0x01010101u)) << vec4u(i);
  }
  return all;`,
};

function spread(words: Uint32Array, from: number, to: number): void {
  for (let at = from; at < to; at++) {
    const word = words[at] as number;
    words[at] =
      everyFourth(word) |
      (everyFourth(word >>> 1) << 8) |
      (everyFourth(word >>> 2) << 16) |
      (everyFourth(word >>> 3) << 24);
  }
}

/** Bits 0, 4, 8 … 28 as a byte. */
function everyFourth(word: number): number {
  let bits = word & 0x11111111;
  bits = (bits | (bits >>> 3)) & 0x03030303;
  bits = (bits | (bits >>> 6)) & 0x000f000f;
  return (bits | (bits >>> 12)) & 255;
}
