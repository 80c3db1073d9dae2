/**
 * One GGUF file's head: magic, version, metadata and tensor descriptions (GGUF specification, versions 2 and 3). What
 * the descriptions say is checked against the file's bytes in `gguf-tensors.ts`.
 */

import { Refusal } from '../errors.ts';
import { HeaderReader } from './gguf-reader.ts';
import { ARRAY_TYPE, valueBytes, valueTypes } from './gguf-types.ts';
import type { MetadataType, MetadataValue } from './model-file.ts';
import type { ByteSource } from './source.ts';

const MAGIC = 0x46554747; // 'GGUF' as a little-endian u32
/** A key takes 8 bytes of length, 1 of name, 4 of type, 1 of value at least. */
const MIN_KEY_BYTES = 14;
/** A tensor takes 8 bytes of length, 1 of name, 4 of rank, 4 of type, 8 of offset at least. */
const MIN_TENSOR_BYTES = 25;
const MAX_RANK = 4;
const DEFAULT_ALIGNMENT = 32;

/** A tensor as the file describes it, nothing checked but that the description is whole. */
export interface TensorDescription {
  readonly name: string;
  /** Innermost first, as GGUF has them. */
  readonly dimensions: readonly (number | bigint)[];
  readonly type: number;
  /** From the start of the data section. */
  readonly offset: number | bigint;
  /** Where the description stands in the file. */
  readonly at: number;
}

export interface GgufHeader {
  readonly version: number;
  readonly metadata: ReadonlyMap<string, MetadataValue>;
  readonly descriptions: readonly TensorDescription[];
  readonly alignment: number;
  /** Where the data section starts, in bytes from the start of the file. */
  readonly dataOffset: number;
}

/**
 * Reads the head, and nothing behind it but what a read's granularity brings along.
 * @throws CorruptFileError `corrupt_file`; Refusal `refused` for versions other than 2 and 3 and for big-endian files.
 */
export async function readGgufHeader(source: ByteSource): Promise<GgufHeader> {
  const reader = new HeaderReader(source);
  const version = await reader.item(() => readVersion(reader));
  const [tensorCount, keyCount] = await reader.item(() => {
    reader.place = 'the counts of tensors and keys';
    return [reader.count('tensors', MIN_TENSOR_BYTES), reader.count('keys', MIN_KEY_BYTES)];
  });
  const metadata = new Map<string, MetadataValue>();
  let alignmentAt = 0;
  for (let index = 0; index < keyCount; index++) {
    await reader.item(() => {
      const at = reader.position;
      reader.place = `key ${index} of ${keyCount}`;
      const key = reader.name('a key');
      reader.place = `key ${key}`;
      if (metadata.has(key)) {
        throw reader.error('the key is there twice; expected once', at);
      }
      alignmentAt = key === 'general.alignment' ? at : alignmentAt;
      metadata.set(key, readValue(reader));
    });
  }
  const descriptions: TensorDescription[] = [];
  const names = new Set<string>();
  for (let index = 0; index < tensorCount; index++) {
    await reader.item(() => {
      const at = reader.position;
      reader.place = `tensor ${index} of ${tensorCount}`;
      const name = reader.name('a tensor name');
      reader.place = `tensor ${name}`;
      if (names.has(name)) {
        throw reader.error('the tensor is there twice; expected once', at);
      }
      descriptions.push(readDescription(reader, name, at));
      names.add(name);
    });
  }
  const alignment = readAlignment(reader, alignmentAt, metadata.get('general.alignment'));
  const dataOffset = Math.ceil(reader.position / alignment) * alignment;
  if (descriptions.length > 0 && dataOffset > source.size) {
    reader.place = metadata.has('general.alignment') ? 'key general.alignment' : 'the tensor data';
    throw reader.error(
      `aligned to ${alignment}, the data would start at byte ${dataOffset}, but the file has only ${source.size} bytes; ` +
        'it is damaged, or its download was cut short',
      alignmentAt > 0 ? alignmentAt : reader.position,
    );
  }
  return { version, metadata, descriptions, alignment, dataOffset };
}

function readVersion(reader: HeaderReader): number {
  reader.place = 'the magic';
  const magic = reader.u32();
  if (magic !== MAGIC) {
    throw reader.error(`found 0x${magic.toString(16)}; expected "GGUF"`, 0);
  }
  reader.place = 'the version';
  const version = reader.u32();
  const { name } = reader.source;
  if (version === 0) {
    throw reader.error('version 0; expected 2 or 3', 4);
  }
  // Versions are small: a number whose low half is empty was written with the bytes the other way round.
  if ((version & 0xffff) === 0) {
    throw new Refusal(
      `${name}: a big-endian GGUF file (byte 4: version 0x${version.toString(16).padStart(8, '0')}); ` +
        'expected little-endian; convert it, or take the little-endian file of the same model',
      { data: { file: name, version } },
    );
  }
  if (version !== 2 && version !== 3) {
    throw new Refusal(
      `${name}: GGUF version ${version} (byte 4) is not supported; supported are 2 and 3; ` +
        (version === 1 ? 'convert the model again with current tools' : 'a newer Conclave may read it'),
      { data: { file: name, version } },
    );
  }
  return version;
}

function readValue(reader: HeaderReader): MetadataValue {
  const type = reader.u32();
  if (type !== ARRAY_TYPE) {
    const name = valueType(reader, type);
    return { type: name, value: reader.scalar(name) };
  }
  const elementType = reader.u32();
  if (elementType === ARRAY_TYPE) {
    throw reader.error('an array of arrays; expected an array of plain values', reader.position - 4);
  }
  const element = valueType(reader, elementType);
  const count = reader.count(`values of type ${element}`, valueBytes[element]);
  return { type: 'array', element, value: reader.array(element, count) };
}

function valueType(reader: HeaderReader, type: number): MetadataType {
  const name = valueTypes[type];
  if (name === undefined) {
    throw reader.error(`value type ${type}; expected one of 0 to 12; the file is damaged`, reader.position - 4);
  }
  return name;
}

function readDescription(reader: HeaderReader, name: string, at: number): TensorDescription {
  const rank = reader.u32();
  if (rank > MAX_RANK) {
    throw reader.error(`${rank} dimensions; expected at most ${MAX_RANK}; the file is damaged`, reader.position - 4);
  }
  const dimensions: (number | bigint)[] = [];
  for (let index = 0; index < rank; index++) {
    dimensions.push(reader.u64());
  }
  return { name, dimensions, type: reader.u32(), offset: reader.u64(), at };
}

function readAlignment(reader: HeaderReader, at: number, entry: MetadataValue | undefined): number {
  if (entry === undefined) {
    return DEFAULT_ALIGNMENT;
  }
  reader.place = 'key general.alignment';
  const { type, value } = entry;
  if (typeof value !== 'number' || type === 'f32' || type === 'f64') {
    throw reader.error(`a value of type ${type}; expected a whole number (u32)`, at);
  }
  if (value < 1 || !Number.isInteger(Math.log2(value))) {
    throw reader.error(`${value}; expected a power of two`, at);
  }
  return value;
}
