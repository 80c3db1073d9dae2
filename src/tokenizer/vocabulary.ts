/**
 * The vocabulary as GGUF metadata holds it, read and checked: token texts, types, scores, merges, the special ids.
 * Whatever contradicts itself is a corrupt file that names its key.
 */

import { CorruptFileError, Refusal } from '../errors.ts';
import type { MetadataValue } from '../format/model-file.ts';

/** `tokenizer.ggml.token_type`. */
export const TokenType = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

const typeNames = ['undefined', 'normal', 'unknown', 'control', 'user-defined', 'unused', 'byte'] as const;

/** GGUF key (after `tokenizer.ggml.`) of each special token, and the name that chat templates know it by. */
const specialKeys = {
  bos_token_id: 'bos_token',
  eos_token_id: 'eos_token',
  unknown_token_id: 'unk_token',
  seperator_token_id: 'sep_token', // spelled so by GGUF
  padding_token_id: 'pad_token',
  mask_token_id: 'mask_token',
  cls_token_id: 'cls_token',
  eot_token_id: 'eot_token',
  eom_token_id: 'eom_token',
  fim_pre_token_id: undefined,
  fim_suf_token_id: undefined,
  fim_mid_token_id: undefined,
  fim_pad_token_id: undefined,
  fim_rep_token_id: undefined,
  fim_sep_token_id: undefined,
} as const;

export type SpecialKey = keyof typeof specialKeys;

/** Keys of ids that end an answer. */
const endKeys: readonly SpecialKey[] = [
  'eos_token_id',
  'eot_token_id',
  'eom_token_id',
  'fim_pad_token_id',
  'fim_rep_token_id',
  'fim_sep_token_id',
];

/**
 * Texts that end an answer in the models that have them. No text is cut into these by accident, so a file that calls
 * one of them a normal token is taken to mean a control token.
 */
const endTexts: ReadonlySet<string> = new Set([
  '<|eot_id|>',
  '<|eom_id|>',
  '<|im_end|>',
  '<|end|>',
  '<|return|>',
  '<|call|>',
  '<|flush|>',
  '<|calls|>',
  '<end_of_turn>',
  '<|endoftext|>',
  '<|end_of_text|>',
  '<EOT>',
  '_<EOT>',
  '[EOT]',
  '[EOS]',
  '<end_of_utterance>',
  '<turn|>',
  '<|tool_response>',
  '<｜end▁of▁sentence｜>',
  '[e~[',
  '<|fim_pad|>',
  '<|repo_name|>',
  '<|file_sep|>',
]);
/** The same, but HTML or prose may hold them: they count only where the file itself calls them control tokens. */
const endTextsIfControl: ReadonlySet<string> = new Set(['</s>', '<eos>']);

/** Where the first text of a row is an end token, the second only closes a message and the answer goes on. */
const notEndBeside: readonly (readonly [string, string, string])[] = [
  ['<|return|>', '<|call|>', '<|end|>'],
  ['<|flush|>', '<|calls|>', '<|end|>'],
  ['<|tool_response>', '<|tool_response>', '</s>'],
];

export interface Vocabulary {
  readonly where: string;
  readonly model: 'gpt2' | 'llama';
  /** As the file names it. */
  readonly pre?: string;
  readonly texts: readonly string[];
  /** A {@link TokenType} a token; 0 is read as normal. */
  readonly types: Uint8Array;
  /** Log probabilities, for SentencePiece. */
  readonly scores?: ArrayLike<number>;
  /** `left right`, the first merged first. */
  readonly merges: readonly string[];
  readonly ids: Readonly<Partial<Record<SpecialKey, number>>>;
  readonly endOfGeneration: ReadonlySet<number>;
  readonly addBos?: boolean;
  readonly addEos?: boolean;
  readonly addSpacePrefix?: boolean;
  readonly removeExtraWhitespaces?: boolean;
  readonly chatTemplate?: string;
  readonly consumedKeys: readonly string[];
}

/**
 * Reads the keys `tokenizer.*`.
 * @throws CorruptFileError `corrupt_file` naming the key; Refusal `refused` for a tokenizer model that is not supported.
 */
export function readVocabulary(metadata: ReadonlyMap<string, MetadataValue>, where: string): Vocabulary {
  const reader = new KeyReader(metadata, where);
  const model = reader.string('tokenizer.ggml.model');
  if (model === undefined) {
    throw new CorruptFileError(`${where}: tokenizer.ggml.model is missing; a model file names its tokenizer there`);
  }
  if (model !== 'gpt2' && model !== 'llama') {
    throw new Refusal(
      `${where}: the tokenizer model '${model}' (tokenizer.ggml.model) is not supported; ` +
        "supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)",
      { data: { key: 'tokenizer.ggml.model', model } },
    );
  }
  const texts = reader.strings('tokenizer.ggml.tokens');
  if (texts === undefined)
    throw new CorruptFileError(`${where}: tokenizer.ggml.tokens is missing: there is no vocabulary`);
  if (texts.length === 0)
    throw new CorruptFileError(`${where}: tokenizer.ggml.tokens is empty: there is no vocabulary`);
  const types = readTypes(reader, texts);
  const scores = reader.numbers('tokenizer.ggml.scores', texts.length);
  if (model === 'llama' && scores === undefined) {
    throw new CorruptFileError(
      `${where}: tokenizer.ggml.scores is missing; the tokenizer 'llama' orders its merges by it`,
    );
  }
  for (let id = 0; scores !== undefined && id < scores.length; id++) {
    if (Number.isNaN(scores[id])) throw new CorruptFileError(`${where}: tokenizer.ggml.scores[${id}] is NaN`);
  }
  const merges = reader.strings('tokenizer.ggml.merges');
  if (model === 'gpt2' && merges === undefined) {
    throw new CorruptFileError(`${where}: tokenizer.ggml.merges is missing; the tokenizer 'gpt2' needs its merges`);
  }
  const ids: Partial<Record<SpecialKey, number>> = {};
  for (const key of Object.keys(specialKeys) as SpecialKey[]) {
    const id = reader.id(`tokenizer.ggml.${key}`, texts.length);
    if (id !== undefined) ids[key] = id;
  }
  return {
    where,
    model,
    pre: reader.string('tokenizer.ggml.pre'),
    texts,
    types,
    scores,
    merges: merges ?? [],
    ids,
    endOfGeneration: endOfGeneration(texts, types, ids),
    addBos: reader.boolean('tokenizer.ggml.add_bos_token'),
    addEos: reader.boolean('tokenizer.ggml.add_eos_token'),
    addSpacePrefix: reader.boolean('tokenizer.ggml.add_space_prefix'),
    removeExtraWhitespaces: reader.boolean('tokenizer.ggml.remove_extra_whitespaces'),
    chatTemplate: reader.string('tokenizer.chat_template'),
    consumedKeys: reader.consumed,
  };
}

/** Special tokens under the names of chat templates, where the file has them. */
export function namedTokens({ texts, ids }: Vocabulary): Record<string, string> {
  const named: Record<string, string> = {};
  for (const [key, name] of Object.entries(specialKeys)) {
    const id = ids[key as SpecialKey];
    if (id !== undefined && name !== undefined) named[name] = texts[id]!;
  }
  return named;
}

/** How many tokens there are of each type, by the type's name. */
export function countTypes({ types }: Vocabulary): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const type of types) counts[typeNames[type]!] = (counts[typeNames[type]!] ?? 0) + 1;
  return counts;
}

function readTypes(reader: KeyReader, texts: readonly string[]): Uint8Array {
  const key = 'tokenizer.ggml.token_type';
  const given = reader.numbers(key, texts.length);
  const types = new Uint8Array(texts.length).fill(TokenType.normal);
  for (let id = 0; given !== undefined && id < given.length; id++) {
    const type = given[id]!;
    if (typeNames[type] === undefined) {
      throw new CorruptFileError(`${reader.where}: ${key}[${id}] is ${type}; expected a type from 1 to 6`);
    }
    types[id] = type;
  }
  for (let id = 0; id < texts.length; id++) {
    const overridable = types[id]! <= TokenType.normal || types[id] === TokenType.userDefined;
    if (overridable && endTexts.has(texts[id]!)) types[id] = TokenType.control;
  }
  return types;
}

/** Ids that end an answer: those of texts which do in every model that has them, and those that the file names. */
export function endOfGeneration(
  texts: readonly string[],
  types: Uint8Array,
  ids: Readonly<Partial<Record<SpecialKey, number>>>,
): Set<number> {
  const ends = new Map<string, number>();
  for (let id = 0; id < texts.length; id++) {
    if (types[id] !== TokenType.control) continue;
    const text = texts[id]!;
    if (endTexts.has(text) || endTextsIfControl.has(text)) ends.set(text, id);
  }
  for (const [first, second, closing] of notEndBeside) {
    if (ends.has(first) && ends.has(second)) ends.delete(closing);
  }
  const set = new Set(ends.values());
  for (const key of endKeys) {
    const id = ids[key];
    if (id !== undefined) set.add(id);
  }
  return set;
}

/** Reads single keys with their types checked, and remembers which were there. */
class KeyReader {
  readonly consumed: string[] = [];
  readonly where: string;
  readonly #metadata: ReadonlyMap<string, MetadataValue>;

  constructor(metadata: ReadonlyMap<string, MetadataValue>, where: string) {
    this.#metadata = metadata;
    this.where = where;
  }

  string(key: string): string | undefined {
    const found = this.#take(key);
    if (found === undefined) return undefined;
    if (found.type !== 'string') throw this.#wrong(key, found, 'a string');
    return found.value as string;
  }

  boolean(key: string): boolean | undefined {
    const found = this.#take(key);
    if (found === undefined) return undefined;
    if (found.type !== 'bool') throw this.#wrong(key, found, 'a bool');
    return found.value as boolean;
  }

  strings(key: string): readonly string[] | undefined {
    const found = this.#take(key);
    if (found === undefined) return undefined;
    if (found.type !== 'array' || found.element !== 'string') throw this.#wrong(key, found, 'an array of strings');
    return found.value as unknown as readonly string[];
  }

  /** An array of `length` numbers. */
  numbers(key: string, length: number): ArrayLike<number> | undefined {
    const found = this.#take(key);
    if (found === undefined) return undefined;
    const numeric = found.type === 'array' && !['string', 'bool', 'u64', 'i64'].includes(found.element);
    if (!numeric) throw this.#wrong(key, found, 'an array of numbers');
    const values = found.value as ArrayLike<number>;
    if (values.length !== length) {
      throw new CorruptFileError(
        `${this.where}: ${key} has ${values.length} values, but tokenizer.ggml.tokens has ${length}; they must be as many`,
        { data: { key, found: values.length, expected: length } },
      );
    }
    return values;
  }

  /** A token id below `tokens`. */
  id(key: string, tokens: number): number | undefined {
    const found = this.#take(key);
    if (found === undefined) return undefined;
    if (!['u8', 'i8', 'u16', 'i16', 'u32', 'i32', 'u64', 'i64'].includes(found.type)) {
      throw this.#wrong(key, found, 'a whole number');
    }
    const id = Number(found.value);
    if (!(id >= 0 && id < tokens)) {
      throw new CorruptFileError(
        `${this.where}: ${key} is ${id}, but the vocabulary has ${tokens} tokens (ids 0 to ${tokens - 1})`,
        { data: { key, found: id, tokens } },
      );
    }
    return id;
  }

  #take(key: string): MetadataValue | undefined {
    const found = this.#metadata.get(key);
    if (found !== undefined) this.consumed.push(key);
    return found;
  }

  #wrong(key: string, found: MetadataValue, expected: string): CorruptFileError {
    const what = found.type === 'array' ? `an array of ${found.element}` : found.type;
    return new CorruptFileError(`${this.where}: ${key} is ${what}; expected ${expected}`, { data: { key } });
  }
}
