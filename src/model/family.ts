/** The row type of the table of families: a file of one architecture becomes a `ModelSpec` and bound weights. */

import type { FamilyReader } from './family-reader.ts';
import type { Dialect } from './hugging-face/dialect.ts';
import type { ModelSpec } from './spec.ts';

export interface Family {
  /** As GGUF's `general.architecture` spells it; also the file's name. */
  readonly architecture: string;
  /**
   * How its models are written in a Hugging Face style folder, one row a `model_type`. Absent: it is read from GGUF alone.
   */
  readonly dialects?: readonly Dialect[];
  /** Reads every key and claims every tensor that it understands. No arithmetic on weights, no device. */
  read(reader: FamilyReader): ModelSpec;
}
