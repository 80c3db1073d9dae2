/** Opens GGUF models: one file, or the set of shards that a file belongs to. Tensor data is never read here. */

import { CorruptFileError, SourceError } from '../errors.ts';
import type { GgufHeader } from './gguf-header.ts';
import { readGgufHeader } from './gguf-header.ts';
import { placeTensors } from './gguf-tensors.ts';
import { wholeNumber } from './metadata.ts';
import type { MetadataValue, ModelFile, TensorInfo } from './model-file.ts';
import type { ByteSource, ModelSource } from './source.ts';

export interface OpenOptions {
  /**
   * Lets tensors through whose format Conclave cannot compute with, under the file's own name for it: to look at a
   * file, not to run it. Default false: such a file is refused.
   */
  readonly keepUnsupported?: boolean;
}

const SHARD_NAME = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/s;
/** Keys that may differ between the shards of a set: each file has its own number and its own alignment. */
const OWN_KEYS: ReadonlySet<string> = new Set(['split.no', 'general.alignment']);

interface Shard {
  readonly source: ByteSource;
  readonly header: GgufHeader;
}

/**
 * Reads the head of a GGUF file (versions 2 and 3, little-endian), and of its siblings where it is one shard of a set
 * (`NAME-00002-of-00003.gguf`; any shard opens the whole set). The result owns `source.file` and closes it; when this
 * throws, `source.file` stays the caller's and everything else that was opened is closed.
 * @throws CorruptFileError `corrupt_file` for damage, contradictions and missing shards; Refusal `refused` for other
 * versions, big-endian files and unsupported tensor types; SourceError `source` where bytes cannot be read, or where a
 * shard comes without its folder.
 */
export async function openGguf(source: ModelSource, options: OpenOptions = {}): Promise<ModelFile> {
  const given: Shard = { source: source.file, header: await readGgufHeader(source.file) };
  const opened: ByteSource[] = [];
  try {
    const shards = await openSet(source, given, opened);
    const tensors = new Map<string, TensorInfo>();
    shards.forEach((shard, index) => {
      const keepUnsupported = options.keepUnsupported ?? false;
      for (const tensor of placeTensors(shard.source, shard.header, { index, keepUnsupported })) {
        const other = tensors.get(tensor.name);
        if (other !== undefined) {
          throw corruptSet(
            source,
            `tensor ${tensor.name} is in ${shards[other.source].source.name} and in ${shard.source.name}; expected once`,
          );
        }
        tensors.set(tensor.name, tensor);
      }
    });
    checkTensorCount(source, shards, tensors.size);
    const sources = shards.map((shard) => shard.source);
    return {
      container: 'gguf',
      version: given.header.version,
      name: source.file.name,
      metadata: mergeMetadata(source, shards),
      tensors,
      sources,
      async close() {
        await Promise.all(sources.map((each) => each.close()));
      },
    };
  } catch (error) {
    await Promise.allSettled(opened.map((each) => each.close()));
    throw error;
  }
}

/** All shards in order, or the one file. What is opened on the way goes into `opened`. */
async function openSet(source: ModelSource, given: Shard, opened: ByteSource[]): Promise<Shard[]> {
  const match = SHARD_NAME.exec(source.fileName);
  const named =
    match === null
      ? undefined
      : { stem: match[1], number: Number(match[2]), count: Number(match[3]), countText: match[3] };
  // Tools that merge a set leave `split.count` at 0.
  const count = wholeNumber(given.header.metadata, 'split.count', source.file.name) ?? 1;
  if (count <= 1 && (named === undefined || named.count <= 1)) {
    return [given];
  }
  if (named === undefined) {
    throw corruptSet(
      source,
      `split.count says that it is one of ${count} shards, but the name ${source.fileName} does not say which; ` +
        `expected NAME-00001-of-${String(count).padStart(5, '0')}.gguf: give the shards their names back`,
    );
  }
  if (named.number < 1 || named.number > named.count) {
    throw corruptSet(source, `named shard ${named.number} of ${named.count}; expected 1 to ${named.count}`);
  }
  checkNumbers(source, given, named.number, named.count);
  if (source.folder === undefined) {
    throw new SourceError(
      `${source.file.name}: shard ${named.number} of ${named.count}, but the other shards cannot be reached from here; ` +
        'open the model by a path or an address beside which they lie',
      { data: { file: source.file.name, shards: named.count } },
    );
  }
  const shards: Shard[] = [];
  for (let number = 1; number <= named.count; number++) {
    if (number === named.number) {
      shards.push(given);
      continue;
    }
    const fileName = `${named.stem}-${String(number).padStart(5, '0')}-of-${named.countText}.gguf`;
    if (!(await source.folder.has(fileName))) {
      throw corruptSet(
        source,
        `shard ${number} of ${named.count}, ${fileName}, is not in ${source.folder.name}; download the whole set`,
      );
    }
    const file = await source.folder.open(fileName);
    opened.push(file);
    const shard = { source: file, header: await readGgufHeader(file) };
    checkNumbers(source, shard, number, named.count);
    shards.push(shard);
  }
  return shards;
}

/** What a shard says of itself against its name. */
function checkNumbers(source: ModelSource, { source: file, header }: Shard, number: number, count: number): void {
  const expected = { 'split.no': number - 1, 'split.count': count };
  for (const [key, value] of Object.entries(expected)) {
    const found = wholeNumber(header.metadata, key, file.name);
    if (found !== value) {
      throw corruptSet(
        source,
        `${file.name} is named shard ${number} of ${count}, so ${key} must be ${value}, but ` +
          `${found === undefined ? 'the key is missing' : `it is ${found}`}; the shards are not of one set, or were renamed`,
      );
    }
  }
}

function checkTensorCount(source: ModelSource, shards: readonly Shard[], found: number): void {
  if (shards.length === 1) {
    return;
  }
  for (const shard of shards) {
    const expected = wholeNumber(shard.header.metadata, 'split.tensors.count', shard.source.name);
    if (expected !== found) {
      throw corruptSet(
        source,
        `the ${shards.length} shards hold ${found} tensors, but split.tensors.count in ${shard.source.name} ` +
          `${expected === undefined ? 'is missing' : `says ${expected}`}; the shards are not of one set, or one is damaged`,
      );
    }
  }
}

/** The first shard's keys, then what others add; a key that two shards fill differently is a contradiction. */
function mergeMetadata(source: ModelSource, shards: readonly Shard[]): ReadonlyMap<string, MetadataValue> {
  const [first, ...others] = shards;
  if (others.length === 0) {
    return first.header.metadata;
  }
  const merged = new Map(first.header.metadata);
  for (const { source: file, header } of others) {
    for (const [key, value] of header.metadata) {
      const before = merged.get(key);
      if (before === undefined) {
        if (!OWN_KEYS.has(key)) {
          merged.set(key, value);
        }
      } else if (!OWN_KEYS.has(key) && !sameValue(before, value)) {
        throw corruptSet(
          source,
          `${file.name} disagrees with the shards before it about the key ${key}; expected one value`,
        );
      }
    }
  }
  return merged;
}

function sameValue(left: MetadataValue, right: MetadataValue): boolean {
  if (left.type === 'array' && right.type === 'array') {
    const { value } = right;
    return (
      left.element === right.element &&
      left.value.length === value.length &&
      Array.from(left.value).every((each, index) => Object.is(each, value[index]))
    );
  }
  return left.type === right.type && Object.is(left.value, right.value);
}

function corruptSet(source: ModelSource, message: string): CorruptFileError {
  return new CorruptFileError(`${source.file.name}: ${message}`, { data: { file: source.file.name } });
}
