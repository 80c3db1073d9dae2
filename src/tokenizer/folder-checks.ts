/**
 * What a `tokenizer.json` is held to before the library reads it: merges that make tokens, as its own readers ask, and patterns that
 * no text can keep busy for ever, since a pattern that has begun cannot be stopped.
 */

import { CorruptFileError, Refusal } from '../errors.ts';
import { isJsonObject, type JsonObject, type JsonValue, showJson } from '../format/json.ts';

/**
 * Merges of a BPE model: texts `left right` or pairs, whose parts and whole are in the vocabulary.
 * @throws CorruptFileError `corrupt_file` naming the first that is not
 */
export function checkMerges({ merges, vocab, continuing_subword_prefix: prefix }: JsonObject, where: string): number {
  if (merges === undefined || merges === null) return 0;
  if (!Array.isArray(merges)) {
    throw new CorruptFileError(`${where}: model.merges is ${showJson(merges)}; expected a list of merges`);
  }
  const known = new Set(isJsonObject(vocab) ? Object.keys(vocab) : []);
  const cut = typeof prefix === 'string' ? prefix.length : 0;
  merges.forEach((merge, index) => {
    const parts: readonly JsonValue[] =
      typeof merge === 'string' ? merge.split(' ') : Array.isArray(merge) ? merge : [];
    const [left, right] = parts;
    if (parts.length !== 2 || typeof left !== 'string' || typeof right !== 'string') {
      throw new CorruptFileError(
        `${where}: model.merges[${index}] is ${showJson(merge)}; expected two texts with a space between`,
      );
    }
    for (const text of [left, right, left + right.slice(cut)]) {
      if (known.has(text)) continue;
      throw new CorruptFileError(
        `${where}: model.merges[${index}] is ${showJson(merge)}, and ${JSON.stringify(text.slice(0, 40))} is no token of model.vocab; the file is damaged`,
      );
    }
  });
  return merges.length;
}

/** @throws Refusal `refused` for a pattern that may take for ever */
export function checkPatterns({ normalizer, pre_tokenizer, decoder }: JsonObject, where: string): void {
  for (const pattern of patternsOf([normalizer ?? null, pre_tokenizer ?? null, decoder ?? null])) {
    if (!repeatsRepeats(pattern)) continue;
    throw new Refusal(
      `${where}: the pattern ${JSON.stringify(pattern.slice(0, 80))} repeats a group that itself repeats or has a choice, for which some ` +
        'texts take for ever; it is not supported',
      { data: { pattern } },
    );
  }
}

function patternsOf(value: JsonValue): readonly string[] {
  if (Array.isArray(value)) return value.flatMap(patternsOf);
  if (!isJsonObject(value)) return [];
  return Object.entries(value).flatMap(([key, inner]) =>
    key === 'Regex' && typeof inner === 'string' ? [inner] : patternsOf(inner ?? null),
  );
}

/** Times of a repeated group that cost little whatever is in it. */
const FEW = 2;

/** Whether a group that holds an endless repetition or a choice is itself repeated more than a few times. */
export function repeatsRepeats(pattern: string): boolean {
  const quantifier = /^(?:[*+]|\{\d*,?(\d*)\})/;
  const groups: boolean[] = [false];
  const rest = (at: number) => quantifier.exec(pattern.slice(at, at + 24));
  for (let at = 0; at < pattern.length; at++) {
    const character = pattern[at];
    let ended: boolean | undefined;
    if (character === '(') {
      groups.push(false);
      continue;
    }
    if (character === '|') groups[groups.length - 1] = groups.length > 1 || groups.at(-1) === true;
    else if (character === ')') ended = groups.length > 1 ? groups.pop() : false;
    else if (character === '\\') at++;
    else if (character === '[') at = classEnd(pattern, at);
    const found = rest(at + 1);
    const most =
      found === null
        ? 1
        : /^[*+]|,\}$/.test(found[0])
          ? Number.POSITIVE_INFINITY
          : Number(/(\d+)\}$/.exec(found[0])?.[1] ?? 1);
    if (ended === true && most > FEW) return true;
    const outer = groups.length - 1;
    if (ended === true || most === Number.POSITIVE_INFINITY) groups[outer] = true;
  }
  return false;
}

function classEnd(pattern: string, start: number): number {
  let depth = 0;
  for (let at = start; at < pattern.length; at++) {
    if (pattern[at] === '\\') at++;
    else if (pattern[at] === '[') depth++;
    else if (pattern[at] === ']' && --depth === 0) return at;
  }
  return pattern.length;
}
