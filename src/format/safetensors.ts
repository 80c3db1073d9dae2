/** Opens safetensors models: one file, or the shards that a `model.safetensors.index.json` lists. */

import { CorruptFileError, SourceError } from '../errors.ts';
import { isJsonObject, looksLikeJsonObject } from './json.ts';
import type { ModelFile, TensorInfo } from './model-file.ts';
import { parseObject, readModelFolder, textOf } from './model-folder.ts';
import { readSafetensorsHeader } from './safetensors-header.ts';
import type { ByteSource, ModelSource } from './source.ts';

/** The largest known index (a model of 90,000 tensors) has 9 MB. */
const MAX_INDEX_BYTES = 100_000_000;

/**
 * Reads the header of a `.safetensors` file, or, given an index (JSON with a `weight_map`), those of all its shards.
 * {@link TensorInfo.format} is the file's dtype; which of them can be computed with is said later. The strings of
 * `__metadata__` are the metadata; what lies beside the tensors is read where there is a folder. The result owns `source.file` and closes it; when this throws, `source.file` stays
 * the caller's and everything else that was opened is closed.
 * @throws CorruptFileError `corrupt_file` for damage, contradictions, missing shards and index entries outside the
 * folder; Refusal `refused` for a dtype that the format does not have; SourceError `source`.
 */
export async function openSafetensors(source: ModelSource): Promise<ModelFile> {
  const opened: ByteSource[] = [];
  try {
    const index = await readIndex(source.file);
    const sources = index === undefined ? [source.file] : await openShards(source, new Set(index.values()), opened);
    const metadata = new Map<string, { type: 'string'; value: string }>();
    const tensors = new Map<string, TensorInfo>();
    for (const [number, shard] of sources.entries()) {
      const header = await readSafetensorsHeader(shard, number);
      for (const tensor of header.tensors) {
        const other = tensors.get(tensor.name);
        if (other !== undefined) {
          throw corrupt(
            source,
            `tensor ${tensor.name} is in ${sources[other.source].name} and in ${shard.name}; expected once`,
          );
        }
        tensors.set(tensor.name, tensor);
      }
      for (const [key, value] of header.metadata) {
        metadata.set(key, { type: 'string', value });
      }
    }
    if (index !== undefined) {
      checkIndex(source, index, tensors, [...new Set(index.values())]);
    }
    const folder = source.folder === undefined ? undefined : await readModelFolder(source.folder);
    return {
      container: 'safetensors',
      // The format has no version number.
      version: 0,
      name: source.file.name,
      metadata,
      tensors,
      sources,
      folder,
      async close() {
        const all = new Set([source.file, ...sources]);
        await Promise.all([...all].map((each) => each.close()));
      },
    };
  } catch (error) {
    await Promise.allSettled(opened.map((each) => each.close()));
    throw error;
  }
}

/** Tensor name → file name; undefined where the file is no JSON text, so that it must be the tensors themselves. */
async function readIndex(file: ByteSource): Promise<ReadonlyMap<string, string> | undefined> {
  const head = new Uint8Array(Math.min(16, file.size));
  await file.readInto(0, head);
  if (!looksLikeJsonObject(head)) {
    return undefined;
  }
  const parsed = parseObject(await textOf(file, MAX_INDEX_BYTES), file.name);
  const map = parsed.weight_map;
  if (!isJsonObject(map)) {
    throw corruptIndex(
      file,
      'JSON without a weight_map; expected the index of a model, usually called model.safetensors.index.json: or give the folder that the file is in',
    );
  }
  const index = new Map<string, string>();
  for (const [tensor, shard] of Object.entries(map)) {
    if (typeof shard !== 'string') {
      throw corruptIndex(file, `weight_map gives ${JSON.stringify(shard)} for ${tensor}; expected a file name`);
    }
    if (!isPlainName(shard)) {
      throw corruptIndex(
        file,
        `weight_map gives ${JSON.stringify(shard)} for ${tensor}; expected the name of a file in the same folder`,
      );
    }
    index.set(tensor, shard);
  }
  if (index.size === 0) {
    throw corruptIndex(file, 'weight_map is empty; expected tensors and the files that hold them');
  }
  return index;
}

/** A name and nothing else: no way out of the folder, on any system or in a URL. */
function isPlainName(name: string): boolean {
  const printable = Array.from(name).every((character) => character >= ' ');
  return printable && name !== '' && name !== '.' && name !== '..' && !/[/\\:?#%]/.test(name);
}

async function openShards(
  source: ModelSource,
  names: ReadonlySet<string>,
  opened: ByteSource[],
): Promise<ByteSource[]> {
  const { folder } = source;
  if (folder === undefined) {
    throw new SourceError(
      `${source.file.name}: an index of ${names.size} files, but they cannot be reached from here; ` +
        'open the model by a path or an address beside which they lie',
      { data: { file: source.file.name } },
    );
  }
  for (const name of names) {
    if (!(await folder.has(name))) {
      throw corrupt(source, `${name}, which the index names, is not in ${folder.name}; download the whole model`);
    }
    opened.push(await folder.open(name));
  }
  return opened;
}

/** Every tensor of the index is in the file that the index names. */
function checkIndex(
  source: ModelSource,
  index: ReadonlyMap<string, string>,
  tensors: ReadonlyMap<string, TensorInfo>,
  names: readonly string[],
): void {
  for (const [name, fileName] of index) {
    const tensor = tensors.get(name);
    if (tensor === undefined || names[tensor.source] !== fileName) {
      const where = tensor === undefined ? 'in no file' : `in ${names[tensor.source]}`;
      throw corrupt(source, `tensor ${name} is ${where}; expected in ${fileName}, as the index says`);
    }
  }
}

function corruptIndex(file: ByteSource, message: string): CorruptFileError {
  return new CorruptFileError(`${file.name}: ${message}`, { data: { file: file.name } });
}

function corrupt(source: ModelSource, message: string): CorruptFileError {
  return corruptIndex(source.file, message);
}
