/** Tokens to text: the bytes of each token, and a streaming decoder over them that never cuts a character. */

import { UsageError } from '../errors.ts';
import { fromByteText } from './byte-level.ts';
import { byteOf, SPACE_MARK } from './sentencepiece.ts';
import type { DecodeOptions, StreamDecoder } from './types.ts';
import { TokenType, type Vocabulary } from './vocabulary.ts';

const SPACE = 0x20;
const nothing = new Uint8Array(0);

/** The bytes that each token stands for, made when first asked for. */
export class TokenBytes {
  readonly #vocabulary: Vocabulary;
  readonly #bytes: (Uint8Array | undefined)[] = [];
  readonly #utf8 = new TextEncoder();

  constructor(vocabulary: Vocabulary) {
    this.#vocabulary = vocabulary;
  }

  isSpecial(id: number): boolean {
    const type = this.#vocabulary.types[id];
    return type === TokenType.control || type === TokenType.unknown;
  }

  /** @throws UsageError `usage` for an id outside the vocabulary. */
  of(id: number): Uint8Array {
    const { texts, where } = this.#vocabulary;
    if (!(Number.isInteger(id) && id >= 0 && id < texts.length)) {
      throw new UsageError(`${where}: there is no token ${id}; ids go from 0 to ${texts.length - 1}`, { data: { id } });
    }
    const known = this.#bytes[id];
    if (known !== undefined) return known;
    const made = this.#make(id);
    this.#bytes[id] = made;
    return made;
  }

  #make(id: number): Uint8Array {
    const { model, texts, types } = this.#vocabulary;
    const text = texts[id]!;
    const type = types[id]!;
    if (type === TokenType.byte) {
      const byte = byteOf(text);
      if (byte !== undefined) return Uint8Array.of(byte);
    }
    if (this.isSpecial(id) || type === TokenType.userDefined) return this.#utf8.encode(text);
    return model === 'llama' ? this.#utf8.encode(text.replaceAll(SPACE_MARK, ' ')) : fromByteText(text);
  }
}

/**
 * `spacePrefix`: encoding put a space before each stretch of text that begins the whole or follows a special token, so
 * decoding drops one there. Without `atStart` the first stretch keeps its space.
 */
export function streamDecoder(
  bytes: TokenBytes,
  options: DecodeOptions & { readonly spacePrefix: boolean; readonly atStart: boolean },
): StreamDecoder {
  const { special = false, spacePrefix } = options;
  // Byte order marks are text like any other.
  const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });
  let atStart = spacePrefix && options.atStart;
  return {
    push(token) {
      let piece = bytes.of(token);
      if (bytes.isSpecial(token)) {
        atStart = spacePrefix;
        if (!special) piece = nothing;
      } else {
        if (atStart && piece[0] === SPACE) piece = piece.subarray(1);
        atStart = false;
      }
      return utf8.decode(piece, { stream: true });
    },
    flush() {
      atStart = spacePrefix && options.atStart;
      return utf8.decode();
    },
  };
}
