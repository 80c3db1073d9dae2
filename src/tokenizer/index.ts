/** Tokenizers from GGUF metadata or from a folder's tokenizer.json: reads the vocabulary and puts the parts together. */

import { CorruptFileError, Refusal } from '../errors.ts';
import type { MetadataValue, ModelFile } from '../format/model-file.ts';
import { BytePairEncoder } from './bpe.ts';
import { streamDecoder, TokenBytes } from './decoder.ts';
import { folderScheme, textKind } from './folder-scheme.ts';
import { folderVocabulary } from './folder-vocabulary.ts';
import { type PreTokenizer, preTokenizer } from './pre-tokenizer.ts';
import type { Scheme } from './scheme.ts';
import { SentencePieceEncoder, SPACE_MARK } from './sentencepiece.ts';
import { SpecialTokens } from './special-tokens.ts';
import type {
  DecodeOptions,
  EncodeOptions,
  NamedToken,
  RenderedTemplate,
  StreamDecoder,
  Tokenizer,
  TokenizerSummary,
} from './types.ts';
import { countTypes, namedTokens, readVocabulary, TokenType, type Vocabulary } from './vocabulary.ts';

export type {
  DecodeOptions,
  EncodeOptions,
  NamedToken,
  RenderedTemplate,
  StreamDecoder,
  TextRanges,
  Tokenizer,
  TokenizerSummary,
} from './types.ts';

/**
 * The tokenizer that a GGUF file describes in its `tokenizer.*` keys. `where` is how errors call the file.
 * @throws CorruptFileError `corrupt_file` naming the key that contradicts the rest; Refusal `refused` for a tokenizer
 * model or a pre-tokenizer that is not known.
 */
export function readTokenizer(metadata: ReadonlyMap<string, MetadataValue>, where: string): Tokenizer {
  const vocabulary = readVocabulary(metadata, where);
  return vocabulary.model === 'llama'
    ? new VocabularyTokenizer(vocabulary, sentencePiece(vocabulary))
    : new VocabularyTokenizer(vocabulary, bytePairs(vocabulary));
}

/**
 * The tokenizer of a model: of a GGUF file its `tokenizer.*` keys, of a safetensors folder its `tokenizer.json`.
 * @param vocabulary rows of the model's embedding
 * @throws CorruptFileError `corrupt_file`; Refusal `refused` for a tokenizer that is not supported, and for a folder that has
 * none
 */
export function tokenizerOf(file: ModelFile, vocabulary: number): Tokenizer {
  if (file.container === 'gguf') return readTokenizer(file.metadata, file.name);
  const { folder } = file;
  if (folder?.tokenizer === undefined) {
    throw new Refusal(
      `${file.name}: there is no tokenizer.json beside it; a model's text becomes tokens by it: download the whole folder`,
    );
  }
  const kind = textKind(folder.tokenizer, `${folder.name}: tokenizer.json`);
  const read = folderVocabulary(folder, vocabulary, kind);
  return new VocabularyTokenizer(read, folderScheme(folder.tokenizer, read, kind));
}

function bytePairs(vocabulary: Vocabulary): Scheme {
  const pre: PreTokenizer = preTokenizer(vocabulary.pre ?? 'default', vocabulary.where);
  const encoder = new BytePairEncoder(vocabulary, pre);
  return {
    pre: pre.name,
    addBos: pre.addBos,
    addSpacePrefix: false,
    encode(fragments, into) {
      for (const fragment of fragments) {
        if ('id' in fragment) into.push(fragment.id);
        else encoder.encode(fragment.text, into);
      }
    },
  };
}

function sentencePiece(vocabulary: Vocabulary): Scheme {
  const { addSpacePrefix = true, removeExtraWhitespaces = false } = vocabulary;
  let encoder: SentencePieceEncoder | undefined;
  return {
    addBos: true,
    addSpacePrefix,
    encode(fragments, into) {
      encoder ??= new SentencePieceEncoder(vocabulary);
      let prefix = addSpacePrefix;
      for (const fragment of fragments) {
        if ('id' in fragment) {
          into.push(fragment.id);
          prefix = addSpacePrefix;
          continue;
        }
        const text = removeExtraWhitespaces ? fragment.text.replace(/ +/g, ' ').replace(/^ | $/g, '') : fragment.text;
        if (text !== '') encoder.encode((prefix ? ` ${text}` : text).replaceAll(' ', SPACE_MARK), into);
        prefix = false;
      }
    },
  };
}

class VocabularyTokenizer implements Tokenizer {
  readonly vocabularySize: number;
  readonly bos?: number;
  readonly eos?: number;
  readonly endOfGeneration: ReadonlySet<number>;
  readonly addBos: boolean;
  readonly addEos: boolean;
  readonly controlTexts: readonly string[];
  readonly chatTemplate?: string;
  readonly namedTokens: Readonly<Record<string, string>>;
  readonly consumedKeys: readonly string[];
  readonly #vocabulary: Vocabulary;
  readonly #scheme: Scheme;
  readonly #special: SpecialTokens;
  readonly #bytes: TokenBytes;

  constructor(vocabulary: Vocabulary, scheme: Scheme) {
    this.#vocabulary = vocabulary;
    this.#scheme = scheme;
    this.#special = new SpecialTokens(vocabulary);
    this.#bytes = new TokenBytes(vocabulary);
    const { texts, ids } = vocabulary;
    this.vocabularySize = texts.length;
    this.bos = ids.bos_token_id;
    this.eos = ids.eos_token_id;
    this.endOfGeneration = vocabulary.endOfGeneration;
    this.addBos = flag(vocabulary, 'bos', scheme.addBos);
    this.addEos = flag(vocabulary, 'eos', scheme.addEos ?? false);
    this.controlTexts = texts.filter((text, id) => vocabulary.types[id] === TokenType.control && text !== '');
    this.chatTemplate = vocabulary.chatTemplate;
    this.namedTokens = namedTokens(vocabulary);
    this.consumedKeys = vocabulary.consumedKeys;
  }

  encode(text: string, { special = false, addBos = false }: EncodeOptions = {}): number[] {
    const ids: number[] = addBos && this.bos !== undefined ? [this.bos] : [];
    this.#scheme.encode(this.#special.split(text.toWellFormed(), { control: special }), ids);
    return ids;
  }

  encodeTemplated({ text, content }: RenderedTemplate): number[] {
    const ids: number[] = [];
    this.#scheme.encode(this.#special.split(text.toWellFormed(), { control: true, content }), ids);
    if (this.addBos && ids[0] !== this.bos) ids.unshift(this.bos!);
    return ids;
  }

  decode(tokens: Iterable<number>, options: DecodeOptions = {}): string {
    const decoder = this.stream(options);
    let text = '';
    for (const token of tokens) text += decoder.push(token);
    return text + decoder.flush();
  }

  stream({ special, continues = false }: DecodeOptions & { readonly continues?: boolean } = {}): StreamDecoder {
    return streamDecoder(this.#bytes, { special, spacePrefix: this.#scheme.addSpacePrefix, atStart: !continues });
  }

  text(id: number): string {
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(this.#bytes.of(id));
  }

  isSpecial(id: number): boolean {
    return this.#bytes.isSpecial(id);
  }

  summary(): TokenizerSummary {
    const named = (id: number): NamedToken => ({ id, text: this.#vocabulary.texts[id]! });
    return {
      model: this.#vocabulary.model,
      pre: this.#scheme.pre,
      tokens: this.vocabularySize,
      merges: this.#vocabulary.merges.length,
      types: countTypes(this.#vocabulary),
      bos: this.bos === undefined ? undefined : named(this.bos),
      eos: this.eos === undefined ? undefined : named(this.eos),
      endOfGeneration: [...this.endOfGeneration].sort((a, b) => a - b).map(named),
      addBos: this.addBos,
      addEos: this.addEos,
      addSpacePrefix: this.#scheme.addSpacePrefix,
      chatTemplateLength: this.chatTemplate?.length ?? 0,
    };
  }
}

/** Whether BOS or EOS is added: as the file says, else as the pre-tokenizer's models do, and only if there is one. */
function flag({ addBos, addEos, ids, where }: Vocabulary, which: 'bos' | 'eos', otherwise: boolean): boolean {
  const given = which === 'bos' ? addBos : addEos;
  const id = ids[`${which}_token_id`];
  if (given === true && id === undefined) {
    throw new CorruptFileError(
      `${where}: tokenizer.ggml.add_${which}_token is true, but tokenizer.ggml.${which}_token_id is missing`,
    );
  }
  return given ?? (otherwise && id !== undefined);
}
