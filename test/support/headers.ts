/** Headers of the families' fixtures, and the same with other metadata and other tensors. */

import assert from 'node:assert/strict';
import { openGguf } from '../../src/format/gguf.ts';
import type { MetadataValue, ModelFile, TensorInfo } from '../../src/format/model-file.ts';
import { familyFile } from './families.ts';
import { nodeModelSource } from './node-source.ts';

/** What a family's fixture says; its bytes are not at hand. */
export async function header(family: string): Promise<ModelFile> {
  const file = await openGguf(await nodeModelSource(familyFile(family, 'model.gguf')));
  await file.close();
  return file;
}

export interface Changes {
  /** Null removes. */
  readonly metadata?: Readonly<Record<string, MetadataValue | null>>;
  readonly tensors?: Readonly<Record<string, TensorInfo | null>>;
}

/** A file with other metadata and tensors; its bytes stay. */
export function altered(file: ModelFile, changes: Changes): ModelFile {
  const change = <T>(map: ReadonlyMap<string, T>, entries: Readonly<Record<string, T | null>> = {}) => {
    const copy = new Map(map);
    for (const [name, value] of Object.entries(entries)) {
      if (value === null) copy.delete(name);
      else copy.set(name, value);
    }
    return copy;
  };
  return { ...file, metadata: change(file.metadata, changes.metadata), tensors: change(file.tensors, changes.tensors) };
}

export function tensorOf(file: ModelFile, name: string): TensorInfo {
  const tensor = file.tensors.get(name);
  assert.ok(tensor !== undefined, name);
  return tensor;
}
