/** A typed look into a file's metadata, for the keys that the container itself defines. */

import { CorruptFileError } from '../errors.ts';
import type { MetadataValue } from './model-file.ts';

/** How errors call a value's type: `u32`, `array of string`. */
export function typeText(entry: MetadataValue): string {
  return entry.type === 'array' ? `array of ${entry.element}` : entry.type;
}

/**
 * A whole number from 0 to 2^53 − 1, of any integer type; undefined where the key is not there.
 * @throws CorruptFileError `corrupt_file`, naming the file and the key.
 */
export function wholeNumber(
  metadata: ReadonlyMap<string, MetadataValue>,
  key: string,
  file: string,
): number | undefined {
  const entry = metadata.get(key);
  if (entry === undefined) {
    return undefined;
  }
  const { type, value } = entry;
  if (type === 'f32' || type === 'f64' || typeof value !== 'number' || value < 0) {
    const found =
      type === 'array' || typeof value === 'string' ? `a value of type ${typeText(entry)}` : `${value} (${type})`;
    throw new CorruptFileError(`${file}: key ${key}: found ${found}; expected a whole number from 0 to 2^53 − 1`, {
      data: { file, key },
    });
  }
  return value;
}
