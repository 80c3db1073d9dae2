/**
 * Text to ids by a `tokenizer.json`, through Hugging Face's own library. Special tokens are cut out of the text before it
 * comes here, and the library is not told of them, so that no text becomes one.
 */

import { Tokenizer as Library } from '@huggingface/tokenizers';
import { CorruptFileError, Refusal } from '../errors.ts';
import { isJsonObject, type JsonObject, type JsonValue, showJson } from '../format/json.ts';
import { byteCharacters } from './byte-level.ts';
import { checkPatterns } from './folder-checks.ts';
import type { TextKind } from './folder-vocabulary.ts';
import type { Scheme } from './scheme.ts';
import { SPACE_MARK } from './sentencepiece.ts';
import { TokenType, type Vocabulary } from './vocabulary.ts';

/**
 * How the texts of tokens are written, as the decoder says.
 * @throws Refusal `refused` for a decoder or a tokenizer model that is not supported
 */
export function textKind(json: JsonObject, where: string): TextKind {
  const model = isJsonObject(json.model) ? json.model.type : undefined;
  if (model !== 'BPE') {
    throw new Refusal(`${where}: the tokenizer model ${showJson(model)} is not supported; supported is "BPE"`);
  }
  const steps = stepsOf(json.decoder, 'decoders');
  if (steps.some(({ type }) => type === 'ByteLevel')) return 'bytes';
  const spaces = steps.some(
    ({ type, pattern }) =>
      type === 'Metaspace' || (type === 'Replace' && JSON.stringify(pattern)?.includes(SPACE_MARK)),
  );
  if (spaces) return 'pieces';
  throw new Refusal(
    `${where}: the decoder ${showJson(json.decoder)} is not supported; supported are ByteLevel, Metaspace and the replacement of ${SPACE_MARK}`,
  );
}

/**
 * @throws CorruptFileError `corrupt_file` where the library cannot read the file; Refusal `refused` for a post-processor that
 * adds more than BOS and EOS, or for a pattern that may take for ever
 */
export function folderScheme(json: JsonObject, vocabulary: Vocabulary, kind: TextKind): Scheme {
  const { where } = vocabulary;
  checkPatterns(json, where);
  const first = libraryOf(json, vocabulary);
  // A text's later stretches are no beginning: where only the first gets a space, they are read by another.
  const prepends = JSON.stringify(json.pre_tokenizer ?? null).includes('"prepend_scheme":"first"');
  const later = prepends ? libraryOf(withoutPrefix(json), vocabulary) : first;
  const lacking = kind === 'bytes' ? lackingBytes(vocabulary) : new Set<number>();
  const utf8 = new TextEncoder();
  return {
    ...addedBy(json, vocabulary),
    addSpacePrefix: kind === 'pieces' && strips(json),
    encode(fragments, into) {
      fragments.forEach((fragment, index) => {
        if ('id' in fragment) {
          into.push(fragment.id);
          return;
        }
        if (lacking.size > 0) checkBytes(utf8.encode(fragment.text), lacking, where);
        for (const id of (index === 0 ? first : later).encode(fragment.text, { add_special_tokens: false }).ids) {
          if (id === undefined)
            throw new Refusal(`${where}: a character of the text has no token, and there is none for unknown ones`);
          into.push(id);
        }
      });
    },
  };
}

/** The library, without special tokens: neither as added ones, nor in the vocabulary that words are looked up in. */
function libraryOf(json: JsonObject, { types, texts, where }: Vocabulary): Library {
  const model = json.model as JsonObject;
  const known = Object.entries(model.vocab as JsonObject).filter(([, id]) => types[id as number] !== TokenType.control);
  const unknown = typeof model.unk_token === 'string' ? texts.indexOf(model.unk_token) : -1;
  if (unknown >= 0) known.push([model.unk_token as string, unknown]);
  const plain = {
    normalizer: null,
    pre_tokenizer: null,
    decoder: null,
    ...json,
    post_processor: null,
    added_tokens: [],
    model: { ...model, vocab: Object.fromEntries(known) },
  };
  return constructed(() => new Library(plain, {}), where);
}

/** BOS or EOS, where the post-processor puts them around a text. */
function addedBy(
  json: JsonObject,
  { texts, ids, where }: Vocabulary,
): { readonly addBos: boolean; readonly addEos: boolean } {
  if (!isJsonObject(json.post_processor)) return { addBos: false, addEos: false };
  const library = constructed(
    () => new Library({ normalizer: null, pre_tokenizer: null, decoder: null, ...json }, {}),
    where,
  );
  const sample =
    texts.find((text, id) => id !== ids.bos_token_id && id !== ids.eos_token_id && /^[a-z]$/.test(text)) ?? 'a';
  const plain = library.encode(sample, { add_special_tokens: false }).ids;
  const full = [...library.encode(sample).ids];
  const addBos = full.length > plain.length && full[0] === ids.bos_token_id && full[0] !== plain[0];
  if (addBos) full.shift();
  const addEos = full.length > plain.length && full.at(-1) === ids.eos_token_id;
  if (addEos) full.pop();
  if (JSON.stringify(full) === JSON.stringify(plain)) return { addBos, addEos };
  throw new Refusal(
    `${where}: its post-processor puts tokens around a text that are neither bos_token before it nor eos_token behind it`,
  );
}

function constructed<T>(make: () => T, where: string): T {
  try {
    return make();
  } catch (cause) {
    const message = cause instanceof Error ? cause.message : String(cause);
    throw new CorruptFileError(`${where}: the tokenizer cannot be read (${message.slice(0, 200)})`, { cause });
  }
}

/** The steps of a part that may be one or a sequence. */
function stepsOf(value: JsonValue | undefined, list: string): readonly JsonObject[] {
  if (!isJsonObject(value)) return [];
  const inner = value[list];
  return value.type === 'Sequence' && Array.isArray(inner) ? inner.filter(isJsonObject) : [value];
}

/** Whether decoding takes away the space that encoding put before the first word. */
function strips(json: JsonObject): boolean {
  return stepsOf(json.decoder, 'decoders').some(
    ({ type, prepend_scheme, add_prefix_space }) =>
      type === 'Strip' || (type === 'Metaspace' && prepend_scheme !== 'never' && add_prefix_space !== false),
  );
}

function withoutPrefix(json: JsonObject): JsonObject {
  const text = JSON.stringify(json.pre_tokenizer).replaceAll('"prepend_scheme":"first"', '"prepend_scheme":"never"');
  return { ...json, pre_tokenizer: JSON.parse(text) as JsonValue };
}

function lackingBytes({ texts, ids }: Vocabulary): ReadonlySet<number> {
  if (ids.unknown_token_id !== undefined) return new Set();
  const known = new Set(texts.filter((text) => text.length === 1));
  return new Set(byteCharacters.flatMap((character, byte) => (known.has(character) ? [] : [byte])));
}

function checkBytes(bytes: Uint8Array, lacking: ReadonlySet<number>, where: string): void {
  const byte = bytes.find((each) => lacking.has(each));
  if (byte === undefined) return;
  throw new Refusal(
    `${where}: the vocabulary has no token for the byte 0x${byte.toString(16).padStart(2, '0')} and no unknown token; leave ` +
      'the characters that need it out of the text',
    { data: { byte } },
  );
}
