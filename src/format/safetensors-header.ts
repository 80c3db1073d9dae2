/**
 * One safetensors file: an 8-byte length, a JSON header of that length, then the data, which the tensors fill from the
 * first byte to the last without gaps (the safetensors format, as its reference implementation enforces it).
 */

import { CorruptFileError, Refusal } from '../errors.ts';
import type { JsonObject, JsonValue } from './json.ts';
import { isJsonObject, parseJson, showJson } from './json.ts';
import type { TensorInfo } from './model-file.ts';
import type { ByteSource } from './source.ts';
import { strictUtf8 } from './utf8.ts';

/** The format's own limit. */
const MAX_HEADER_BYTES = 100_000_000;

/** Bits a value, by dtype: what the format defines as of version 0.8. */
const dtypeBits: Readonly<Record<string, number>> = {
  BOOL: 8,
  F4: 4,
  F6_E2M3: 6,
  F6_E3M2: 6,
  U8: 8,
  I8: 8,
  F8_E5M2: 8,
  F8_E4M3: 8,
  F8_E8M0: 8,
  F8_E4M3FNUZ: 8,
  F8_E5M2FNUZ: 8,
  I16: 16,
  U16: 16,
  F16: 16,
  BF16: 16,
  I32: 32,
  U32: 32,
  F32: 32,
  C64: 64,
  F64: 64,
  I64: 64,
  U64: 64,
};

const ENTRY_FIELDS: ReadonlySet<string> = new Set(['dtype', 'shape', 'data_offsets']);

export interface SafetensorsHeader {
  /** The strings of `__metadata__`. */
  readonly metadata: ReadonlyMap<string, string>;
  readonly tensors: readonly TensorInfo[];
}

/**
 * @param index The number that {@link TensorInfo.source} gets.
 * @throws CorruptFileError `corrupt_file`; Refusal `refused` for a dtype that the format does not have.
 */
export async function readSafetensorsHeader(source: ByteSource, index: number): Promise<SafetensorsHeader> {
  const header = await readJson(source);
  const metadata = new Map<string, string>();
  const tensors: TensorInfo[] = [];
  const dataStart = header.end;
  const dataBytes = source.size - dataStart;
  for (const [name, entry] of Object.entries(header.value)) {
    if (name === '__metadata__') {
      readMetadata(source, entry, metadata);
    } else {
      const { begin, end, ...tensor } = readEntry(source, name, entry, dataBytes);
      tensors.push({ name, ...tensor, source: index, offset: dataStart + begin, bytes: end - begin });
    }
  }
  checkCoverage(source, tensors, dataStart);
  return { metadata, tensors };
}

async function readJson(source: ByteSource): Promise<{ value: JsonObject; end: number }> {
  if (source.size < 8) {
    throw corrupt(source, 'the header length', `the file has ${source.size} bytes; expected at least 8`);
  }
  const head = new Uint8Array(8);
  await source.readInto(0, head);
  const length = new DataView(head.buffer).getBigUint64(0, true);
  if (length > MAX_HEADER_BYTES || Number(length) > source.size - 8) {
    throw corrupt(
      source,
      'the header length, at byte 0',
      `a header of ${length} bytes, but ${source.size - 8} bytes are left and at most ${MAX_HEADER_BYTES} are allowed; ` +
        'the file is damaged, or its download was cut short',
    );
  }
  const bytes = new Uint8Array(Number(length));
  await source.readInto(8, bytes);
  const text = strictUtf8(bytes);
  if (text === undefined) {
    throw corrupt(source, 'the header, at byte 8', 'it is not UTF-8; expected JSON');
  }
  const { value, duplicate, error } = { duplicate: undefined, ...parseJson(text) };
  if (error !== undefined) {
    throw corrupt(source, 'the header, at byte 8', `it is not JSON (${error}); expected an object of tensors`);
  }
  if (duplicate !== undefined) {
    throw corrupt(
      source,
      'the header, at byte 8',
      `the name ${JSON.stringify(duplicate)} is there twice; expected once`,
    );
  }
  if (!isJsonObject(value)) {
    throw corrupt(source, 'the header, at byte 8', 'JSON, but not an object; expected an object of tensors');
  }
  return { value, end: 8 + Number(length) };
}

function readMetadata(source: ByteSource, entry: JsonValue, metadata: Map<string, string>): void {
  if (!isJsonObject(entry)) {
    throw corrupt(source, '__metadata__', `${showJson(entry)}; expected an object of strings`);
  }
  for (const [key, value] of Object.entries(entry)) {
    if (typeof value !== 'string') {
      throw corrupt(source, `__metadata__, ${key}`, `${showJson(value)}; expected a string`);
    }
    metadata.set(key, value);
  }
}

function readEntry(source: ByteSource, name: string, entry: JsonValue, dataBytes: number) {
  const place = `tensor ${name}`;
  if (name === '') {
    throw corrupt(source, 'the header', 'a tensor without a name; expected at least one character');
  }
  if (!isJsonObject(entry)) {
    throw corrupt(source, place, `${showJson(entry)}; expected an object with dtype, shape and data_offsets`);
  }
  const { dtype, shape, data_offsets: offsets } = entry;
  const extra = Object.keys(entry).find((field) => !ENTRY_FIELDS.has(field));
  if (extra !== undefined) {
    throw new Refusal(`${source.name}: ${place}: field ${extra} is not known; expected dtype, shape and data_offsets`, {
      data: { file: source.name, tensor: name, field: extra },
    });
  }
  if (typeof dtype !== 'string') {
    throw corrupt(source, place, `dtype ${showJson(dtype)}; expected a string`);
  }
  if (!isCounts(shape)) {
    throw corrupt(source, place, `shape ${showJson(shape)}; expected a list of whole numbers from 0 up`);
  }
  if (!isCounts(offsets) || offsets.length !== 2) {
    throw corrupt(source, place, `data_offsets ${showJson(offsets)}; expected two whole numbers from 0 up`);
  }
  const [begin, end] = offsets as [number, number];
  if (begin > end || end > dataBytes) {
    throw corrupt(
      source,
      place,
      `data_offsets ${showJson(offsets)}; expected a start, then an end within the ${dataBytes} bytes of data; ` +
        'the file is damaged, or its download was cut short',
    );
  }
  const bits = Object.hasOwn(dtypeBits, dtype) ? dtypeBits[dtype] : undefined;
  if (bits === undefined) {
    throw new Refusal(
      `${source.name}: ${place}: dtype ${dtype} is not supported; supported are ${Object.keys(dtypeBits).join(', ')}`,
      { data: { file: source.name, tensor: name, dtype } },
    );
  }
  const size = shape.reduce((product, dimension) => product * dimension, bits) / 8;
  if (size !== end - begin) {
    throw corrupt(
      source,
      place,
      `shape ${showJson(shape)} of ${dtype} takes ${size} bytes, but data_offsets ${showJson(offsets)} span ${end - begin}`,
    );
  }
  return { format: dtype, shape, begin, end };
}

function checkCoverage(source: ByteSource, tensors: readonly TensorInfo[], dataStart: number): void {
  let covered = dataStart;
  let before = 'the header';
  const sorted = tensors.toSorted((left, right) => left.offset - right.offset || left.bytes - right.bytes);
  for (const { name, offset, bytes } of sorted) {
    if (offset !== covered) {
      const what = offset < covered ? 'inside' : 'after a hole behind';
      throw corrupt(
        source,
        `tensor ${name}`,
        `its data starts at byte ${offset}, ${what} ${before}, which ends at byte ${covered}; expected one right after the other`,
      );
    }
    covered = offset + bytes;
    before = `tensor ${name}`;
  }
  if (covered !== source.size) {
    throw corrupt(
      source,
      'the data',
      `the tensors end at byte ${covered}, but the file has ${source.size} bytes; expected no bytes behind them`,
    );
  }
}

function isCounts(value: JsonValue | undefined): value is readonly number[] {
  return Array.isArray(value) && value.every((each) => Number.isSafeInteger(each) && each >= 0);
}

function corrupt(source: ByteSource, place: string, message: string): CorruptFileError {
  return new CorruptFileError(`${source.name}: ${place}: ${message}`, { data: { file: source.name, place } });
}
