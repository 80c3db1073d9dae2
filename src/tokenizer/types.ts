/** What a tokenizer is to the rest of Conclave: text to ids and back, and the ids that mean something. */

/** Half-open ranges of UTF-16 offsets, flattened and ascending: `[start, end, start, end, …]`. */
export type TextRanges = readonly number[];

/** A rendered chat template: its text, and which characters of it came out of message content. */
export interface RenderedTemplate {
  readonly text: string;
  /** No control token is ever read from text that touches these. */
  readonly content: TextRanges;
}

export interface EncodeOptions {
  /** The text of control tokens becomes those tokens. Default false: it stays text. */
  readonly special?: boolean;
  /** Begin with the BOS token. Default false; `Tokenizer.addBos` says what the file asks for. */
  readonly addBos?: boolean;
}

export interface DecodeOptions {
  /** Control tokens appear as their text. Default false: they are left out. */
  readonly special?: boolean;
}

/** Turns tokens into text as they come. What it has returned so far never ends in half a character. */
export interface StreamDecoder {
  /** The text that `token` completes; may be empty. */
  push(token: number): string;
  /** The rest: an unfinished character becomes U+FFFD. The decoder then starts anew. */
  flush(): string;
}

/** A token with its text, for people to read. */
export interface NamedToken {
  readonly id: number;
  readonly text: string;
}

/** What `inspect` prints of a tokenizer. Plain data. */
export interface TokenizerSummary {
  readonly model: string;
  /** The pre-tokenizer that the file names; absent for SentencePiece. */
  readonly pre?: string;
  readonly tokens: number;
  readonly merges: number;
  /** How many tokens there are of each type. */
  readonly types: Readonly<Record<string, number>>;
  readonly bos?: NamedToken;
  readonly eos?: NamedToken;
  readonly endOfGeneration: readonly NamedToken[];
  readonly addBos: boolean;
  readonly addEos: boolean;
  readonly addSpacePrefix: boolean;
  /** Characters of the chat template; 0: the file has none. */
  readonly chatTemplateLength: number;
}

export interface Tokenizer {
  /** Number of tokens. */
  readonly vocabularySize: number;
  /**
   * Ids of `text`. User-defined tokens are always recognised, control tokens only with `special`.
   * @throws Refusal `refused` when a byte of the text has no token.
   */
  encode(text: string, options?: EncodeOptions): number[];
  /**
   * Ids of a rendered chat template: as `encode` with `special`, but text that came from messages is never read as a
   * control token. Begins with BOS where the file asks for it and the template did not write it.
   */
  encodeTemplated(rendered: RenderedTemplate): number[];
  /** @throws UsageError `usage` for an id outside the vocabulary. */
  decode(tokens: Iterable<number>, options?: DecodeOptions): string;
  /**
   * A decoder for tokens that come one by one; all its text together equals {@link decode}. `continues`: the tokens go
   * on from earlier text, so a leading space that SentencePiece puts before a first word is kept.
   */
  stream(options?: DecodeOptions & { readonly continues?: boolean }): StreamDecoder;
  readonly bos?: number;
  readonly eos?: number;
  /** Ids that end an answer. */
  readonly endOfGeneration: ReadonlySet<number>;
  readonly addBos: boolean;
  readonly addEos: boolean;
  /** The text of one token, control tokens included; half characters show as U+FFFD. */
  text(id: number): string;
  /** Whether `id` is a control (or the unknown) token: it steers the model and is no text. */
  isSpecial(id: number): boolean;
  /** Texts of the control tokens. */
  readonly controlTexts: readonly string[];
  readonly chatTemplate?: string;
  /** Special tokens by the name that chat templates know them by: `bos_token`, `eos_token`, … */
  readonly namedTokens: Readonly<Record<string, string>>;
  /** Metadata keys that the tokenizer has read. */
  readonly consumedKeys: readonly string[];
  summary(): TokenizerSummary;
}
