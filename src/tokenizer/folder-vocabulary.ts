/**
 * The vocabulary of a safetensors folder: token texts and kinds from `tokenizer.json`, special tokens by name from
 * `tokenizer_config.json`, what ends an answer from `generation_config.json` and `config.json`. Checked before anything is
 * sized by it; what contradicts itself is a corrupt file that names its key.
 */

import { CorruptFileError, Refusal } from '../errors.ts';
import { isJsonObject, type JsonObject, type JsonValue, showJson } from '../format/json.ts';
import type { ModelFolder } from '../format/model-folder.ts';
import { checkMerges } from './folder-checks.ts';
import { byteOf } from './sentencepiece.ts';
import { endOfGeneration, type SpecialKey, TokenType, type Vocabulary } from './vocabulary.ts';

/** A token beside the model's own vocabulary. */
interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
}

/** Names in `tokenizer_config.json`. */
const namedIds = {
  bos_token: 'bos_token_id',
  eos_token: 'eos_token_id',
  unk_token: 'unknown_token_id',
  sep_token: 'seperator_token_id',
  pad_token: 'padding_token_id',
  mask_token: 'mask_token_id',
  cls_token: 'cls_token_id',
} as const satisfies Readonly<Record<string, SpecialKey>>;

/** How the parts of a token's text are written: bytes as characters of their own, or SentencePiece's way. */
export type TextKind = 'bytes' | 'pieces';

/**
 * @param rows of the model's embedding: ids up to there exist, though the vocabulary may end before
 * @throws CorruptFileError `corrupt_file` naming the file and the key; Refusal `refused` for tokenizers that are not supported
 */
export function folderVocabulary(folder: ModelFolder, rows: number, kind: TextKind): Vocabulary {
  const json = folder.tokenizer as JsonObject;
  const where = `${folder.name}: tokenizer.json`;
  const model = objectOf(json.model, `${where}: model`);
  const added = addedTokens(json.added_tokens, where);
  const texts = new Array<string>(rows).fill('');
  const types = new Uint8Array(rows).fill(TokenType.unused);
  const put = (text: string, id: JsonValue, type: number) => {
    if (typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id >= rows) {
      throw new CorruptFileError(
        `${where}: the token ${JSON.stringify(text.slice(0, 40))} has the id ${showJson(id)}; expected one from 0 to ` +
          `${rows - 1}, since the model's embedding has ${rows} rows`,
      );
    }
    if (types[id] !== TokenType.unused && texts[id] !== text) {
      throw new CorruptFileError(
        `${where}: the id ${id} is of ${JSON.stringify(texts[id])} and of ${JSON.stringify(text.slice(0, 40))}; expected one token`,
      );
    }
    texts[id] = text;
    types[id] = type;
  };
  for (const [text, id] of Object.entries(objectOf(model.vocab, `${where}: model.vocab`))) {
    put(text, id, kind === 'pieces' && byteOf(text) !== undefined ? TokenType.byte : TokenType.normal);
  }
  for (const { id, content, special } of added) put(content, id, special ? TokenType.control : TokenType.userDefined);
  const ids = specialIds(folder, texts);
  const ends = [folder.generationConfig, folder.config].flatMap((file) => endIds(file, folder.name, rows));
  return {
    where,
    model: kind === 'bytes' ? 'gpt2' : 'llama',
    texts,
    types,
    merges: new Array<string>(checkMerges(model, where)).fill(''),
    ids,
    endOfGeneration: new Set([...endOfGeneration(texts, types, ids), ...ends]),
    addBos: flagOf(folder.tokenizerConfig?.add_bos_token, `${folder.name}: add_bos_token of tokenizer_config.json`),
    addEos: flagOf(folder.tokenizerConfig?.add_eos_token, `${folder.name}: add_eos_token of tokenizer_config.json`),
    chatTemplate: folder.chatTemplate ?? templateOf(folder),
    consumedKeys: [],
  };
}

/** `added_tokens` of `tokenizer.json`. @throws as {@link folderVocabulary} */
function addedTokens(value: JsonValue | undefined, where: string): readonly AddedToken[] {
  if (!Array.isArray(value)) {
    throw new CorruptFileError(`${where}: added_tokens is ${showJson(value)}; expected a list of tokens`);
  }
  return value.map((entry, index) => {
    const at = `${where}: added_tokens[${index}]`;
    const { id, content, special, single_word, lstrip, rstrip } = objectOf(entry, at);
    if (typeof id !== 'number' || typeof content !== 'string' || content === '') {
      throw new CorruptFileError(
        `${at}: id ${showJson(id)} and content ${showJson(content)}; expected a number and a text`,
      );
    }
    if (single_word === true || lstrip === true || rstrip === true) {
      const which = single_word === true ? 'single_word' : lstrip === true ? 'lstrip' : 'rstrip';
      throw new Refusal(
        `${at}: ${JSON.stringify(content)} has ${which}; tokens that take text around them are not supported`,
      );
    }
    return { id, content, special: special === true };
  });
}

/** Special tokens by their texts. @throws CorruptFileError `corrupt_file` for a text that is no token */
function specialIds(
  { tokenizerConfig, name }: ModelFolder,
  texts: readonly string[],
): Partial<Record<SpecialKey, number>> {
  const ids: Partial<Record<SpecialKey, number>> = {};
  for (const [key, id] of Object.entries(namedIds)) {
    const said = tokenizerConfig?.[key];
    const text = isJsonObject(said) ? said.content : said;
    if (text === undefined || text === null || text === '') continue;
    const found = typeof text === 'string' ? texts.indexOf(text) : -1;
    if (found < 0) {
      throw new CorruptFileError(
        `${name}: ${key} of tokenizer_config.json is ${showJson(said)}, which is no token of tokenizer.json; expected one of its texts`,
        { data: { key } },
      );
    }
    ids[id] = found;
  }
  return ids;
}

/** `eos_token_id`: a number or several. @throws CorruptFileError `corrupt_file` for what is no id */
function endIds(file: JsonObject | undefined, where: string, rows: number): number[] {
  const said = file?.eos_token_id ?? [];
  return (Array.isArray(said) ? said : [said]).map((id) => {
    if (typeof id === 'number' && Number.isInteger(id) && id >= 0 && id < rows) return id;
    throw new CorruptFileError(`${where}: eos_token_id is ${showJson(said)}; expected ids from 0 to ${rows - 1}`, {
      data: { key: 'eos_token_id' },
    });
  });
}

/** The older place of the template: a text, or several with names, of which `default` is meant. */
function templateOf({ tokenizerConfig, name }: ModelFolder): string | undefined {
  const said = tokenizerConfig?.chat_template ?? undefined;
  if (said === undefined || typeof said === 'string') return said;
  const chosen = Array.isArray(said)
    ? said.filter(isJsonObject).find((each) => each.name === 'default')?.template
    : undefined;
  if (typeof chosen === 'string') return chosen;
  throw new CorruptFileError(
    `${name}: chat_template of tokenizer_config.json is ${showJson(said)}; expected a text, or a list with one that is called default`,
  );
}

function flagOf(value: JsonValue | undefined, where: string): boolean | undefined {
  if (value === undefined || value === null || typeof value === 'boolean') return value ?? undefined;
  throw new CorruptFileError(`${where} is ${showJson(value)}; expected true or false`);
}

function objectOf(value: JsonValue | undefined, where: string): JsonObject {
  if (isJsonObject(value)) return value;
  throw new CorruptFileError(`${where} is ${showJson(value)}; expected an object`);
}
