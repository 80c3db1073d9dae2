/** What differs between kinds of tokenizers: how text without special tokens becomes ids. */

import type { Fragment } from './special-tokens.ts';

export interface Scheme {
  readonly pre?: string;
  /** Whether a text begins with BOS where the file does not say otherwise. */
  readonly addBos: boolean;
  /** The same for EOS behind it. */
  readonly addEos?: boolean;
  readonly addSpacePrefix: boolean;
  /** Ids of fragments, in order. */
  encode(fragments: readonly Fragment[], into: number[]): void;
}
