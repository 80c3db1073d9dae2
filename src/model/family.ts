/** The row type of the table of families: a file of one architecture becomes a `ModelSpec` and bound weights. */

import type { FamilyReader } from './family-reader.ts';
import type { ModelSpec } from './spec.ts';

export interface Family {
  /** As GGUF's `general.architecture` spells it; also the file's name. */
  readonly architecture: string;
  /** Reads every key and claims every tensor that it understands. No arithmetic on weights, no device. */
  read(reader: FamilyReader): ModelSpec;
}
