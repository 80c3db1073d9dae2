/** A safetensors folder's header with changes, and what is expected of them: for tests of how it is read. */

import { CorruptFileError, Refusal } from '../../src/errors.ts';
import type { JsonObject, JsonValue } from '../../src/format/json.ts';
import type { ModelFile, TensorInfo } from '../../src/format/model-file.ts';

/** Undefined removes. */
export type Changes<T> = Readonly<Record<string, T | undefined>>;

function changed<T>(entries: Iterable<readonly [string, T]>, changes: Changes<T>): [string, T][] {
  return Object.entries({ ...Object.fromEntries(entries), ...changes }).filter(
    (entry): entry is [string, T] => entry[1] !== undefined,
  );
}

export function altered(
  file: ModelFile,
  changes: { readonly config?: Changes<JsonValue>; readonly tensors?: Changes<TensorInfo> },
): ModelFile {
  const config: JsonObject = Object.fromEntries(
    changed(Object.entries(file.folder?.config ?? {}), changes.config ?? {}),
  );
  const tensors = new Map(changed(file.tensors, changes.tensors ?? {}));
  return { ...file, tensors, folder: { ...file.folder, name: 'a folder', config } };
}

export const corrupt = (mention: RegExp) => (error: unknown) =>
  error instanceof CorruptFileError && mention.test(error.message);
export const refused = (mention: RegExp) => (error: unknown) => error instanceof Refusal && mention.test(error.message);
