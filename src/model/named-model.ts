/** A model file under the names by which families ask for what is in it, which are GGUF's, and the family that reads it. */

import { CorruptFileError, Refusal } from '../errors.ts';
import type { ModelFile } from '../format/model-file.ts';
import { families } from './families/index.ts';
import type { Family } from './family.ts';
import type { Ignored } from './family-reader.ts';
import { ggufSpelling, type Spelling } from './spelling.ts';

export interface NamedModel {
  readonly family: Family;
  /**
   * Metadata and tensors by GGUF's names; {@link ModelFile.name} is how errors call the model, and a tensor's own name is
   * what the file calls it. Its sources are what weights are read from.
   */
  readonly file: ModelFile;
  readonly spelling: Spelling;
  /** Keys that have a reason not to be used, whatever the family. */
  readonly ignored: readonly Ignored[];
  /** Keys that nobody knows, beside those that no family asks for. */
  readonly unknownKeys: readonly string[];
  /** Whether the file has a key or a tensor that it calls so. */
  has(name: string): boolean;
}

/**
 * A GGUF file, whose names are these.
 * @throws CorruptFileError `corrupt_file` where it does not name its architecture; Refusal `refused` for one that is not known
 */
export function nameGguf(file: ModelFile): NamedModel {
  const found = file.metadata.get('general.architecture');
  if (found?.type !== 'string') {
    const what = found === undefined ? 'is missing' : `is of type ${found.type}`;
    throw new CorruptFileError(
      `${file.name}: general.architecture ${what}; expected a text such as "llama"; the file does not say what model it holds`,
      { data: { key: 'general.architecture' } },
    );
  }
  const family = families.find(({ architecture }) => architecture === found.value);
  if (family === undefined) {
    throw new Refusal(
      `${file.name}: the architecture ${JSON.stringify(String(found.value).slice(0, 60))} is not supported; ` +
        `supported are ${families.map(({ architecture }) => architecture).join(', ')}`,
      { data: { architecture: found.value } },
    );
  }
  return {
    family,
    file,
    spelling: ggufSpelling(family.architecture),
    ignored: [],
    unknownKeys: [],
    has: (name) => file.metadata.has(name) || file.tensors.has(name),
  };
}
