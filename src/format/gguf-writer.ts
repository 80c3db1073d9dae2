/**
 * Writes GGUF version 3: whole files in memory ({@link writeGguf}), or the head alone, so that the tensors after it can be
 * streamed or made when they are read ({@link ggufHead}). Takes metadata and shapes in the form in which `src/format` reads them.
 */

import { InternalError } from '../errors.ts';
import type { FormatId } from '../quant/index.ts';
import { formatBytes, formatOf } from '../quant/index.ts';
import type { MetadataType, MetadataValue } from './model-file.ts';

export interface TensorHead {
  readonly name: string;
  readonly format: FormatId;
  /** Row-major, outermost first, as everywhere in Conclave; the file holds it innermost first. */
  readonly shape: readonly number[];
}

export interface TensorWithData extends TensorHead {
  /** Whole blocks of `format`, row after row. */
  readonly data: Uint8Array;
}

export type MetadataEntries = Readonly<Record<string, MetadataValue>>;

export interface GgufHead {
  /** Everything before the first tensor's bytes, padded to the alignment. */
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** For each tensor, where its bytes start and how many they are, from the start of the file; gaps are zeros. */
  readonly places: readonly { readonly offset: number; readonly bytes: number }[];
  /** Size of the whole file, without padding after the last tensor. */
  readonly fileBytes: number;
}

/** Metadata in short: `meta.u32(5)`, `meta.string('gpt2')`, `meta.array('string', ['a', 'b'])`. */
export const meta = {
  u32: (value: number): MetadataValue => ({ type: 'u32', value }),
  f32: (value: number): MetadataValue => ({ type: 'f32', value }),
  bool: (value: boolean): MetadataValue => ({ type: 'bool', value }),
  string: (value: string): MetadataValue => ({ type: 'string', value }),
  array: (element: MetadataType, value: ArrayLike<number | bigint | boolean | string>): MetadataValue => ({
    type: 'array',
    element,
    value,
  }),
} as const;

/** A whole GGUF file in memory. */
export function writeGguf(file: {
  readonly metadata: MetadataEntries;
  readonly tensors: readonly TensorWithData[];
}): Uint8Array<ArrayBuffer> {
  const head = ggufHead(file);
  const bytes = new Uint8Array(head.fileBytes);
  bytes.set(head.bytes);
  file.tensors.forEach(({ name, data }, i) => {
    const place = head.places[i] as GgufHead['places'][number];
    if (data.length !== place.bytes) {
      throw new InternalError(`${name}: ${data.length} bytes were given, its shape and format need ${place.bytes}`);
    }
    bytes.set(data, place.offset);
  });
  return bytes;
}

/** The head of a GGUF file; `general.alignment` in the metadata sets the alignment, else it is 32 bytes. */
export function ggufHead(file: {
  readonly metadata: MetadataEntries;
  readonly tensors: readonly TensorHead[];
}): GgufHead {
  const stated = file.metadata['general.alignment'];
  const alignment = stated?.type === 'u32' ? Number(stated.value) : 32;
  const aligned = (offset: number) => Math.ceil(offset / alignment) * alignment;

  const writer = new Writer();
  writer.raw(new TextEncoder().encode('GGUF'));
  writer.scalar('u32', 3);
  writer.scalar('u64', file.tensors.length);
  writer.scalar('u64', Object.keys(file.metadata).length);
  for (const [key, entry] of Object.entries(file.metadata)) {
    writer.scalar('string', key);
    writer.value(entry);
  }

  const relative: { offset: number; bytes: number }[] = [];
  let end = 0;
  for (const { name, format, shape } of file.tensors) {
    const bytes = formatBytes(
      format,
      shape.reduce((product, n) => product * n, 1),
    );
    const offset = aligned(end);
    writer.scalar('string', name);
    writer.scalar('u32', shape.length);
    for (const n of shape.toReversed()) {
      writer.scalar('u64', n);
    }
    writer.scalar('u32', ggufType(format));
    writer.scalar('u64', offset);
    relative.push({ offset, bytes });
    end = offset + bytes;
  }

  const headBytes = aligned(writer.length);
  const bytes = new Uint8Array(headBytes);
  bytes.set(writer.written());
  const places = relative.map((place) => ({ offset: headBytes + place.offset, bytes: place.bytes }));
  return { bytes, places, fileBytes: headBytes + end };
}

function ggufType(format: FormatId): number {
  const type = formatOf(format).ggufType;
  if (type === undefined) {
    throw new InternalError(`GGUF has no type number for ${format}`);
  }
  return type;
}

/** The number of each metadata type in the file, and how a value of it is written. */
const types: Readonly<
  Record<MetadataType, { code: number; bytes: number; write: (view: DataView, value: never) => void }>
> = {
  u8: { code: 0, bytes: 1, write: (view, value: number) => view.setUint8(0, value) },
  i8: { code: 1, bytes: 1, write: (view, value: number) => view.setInt8(0, value) },
  u16: { code: 2, bytes: 2, write: (view, value: number) => view.setUint16(0, value, true) },
  i16: { code: 3, bytes: 2, write: (view, value: number) => view.setInt16(0, value, true) },
  u32: { code: 4, bytes: 4, write: (view, value: number) => view.setUint32(0, value, true) },
  i32: { code: 5, bytes: 4, write: (view, value: number) => view.setInt32(0, value, true) },
  f32: { code: 6, bytes: 4, write: (view, value: number) => view.setFloat32(0, value, true) },
  bool: { code: 7, bytes: 1, write: (view, value: boolean) => view.setUint8(0, value ? 1 : 0) },
  string: { code: 8, bytes: 0, write: () => {} },
  u64: { code: 10, bytes: 8, write: (view, value: number) => view.setBigUint64(0, BigInt(value), true) },
  i64: { code: 11, bytes: 8, write: (view, value: number) => view.setBigInt64(0, BigInt(value), true) },
  f64: { code: 12, bytes: 8, write: (view, value: number) => view.setFloat64(0, value, true) },
};

const ARRAY_CODE = 9;

/** Bytes that grow as they are written. */
class Writer {
  length = 0;
  #bytes = new Uint8Array(1 << 16);
  readonly #encoder = new TextEncoder();

  written(): Uint8Array {
    return this.#bytes.subarray(0, this.length);
  }

  raw(bytes: Uint8Array): void {
    this.#take(bytes.length).set(bytes);
  }

  scalar(type: MetadataType, value: number | bigint | boolean | string): void {
    if (type === 'string') {
      const text = this.#encoder.encode(value as string);
      this.scalar('u64', text.length);
      this.raw(text);
    } else {
      const { bytes, write } = types[type];
      const place = this.#take(bytes);
      write(new DataView(place.buffer, place.byteOffset, bytes), value as never);
    }
  }

  value(entry: MetadataValue): void {
    if (entry.type === 'array') {
      this.scalar('u32', ARRAY_CODE);
      this.scalar('u32', types[entry.element].code);
      this.scalar('u64', entry.value.length);
      for (let i = 0; i < entry.value.length; i++) {
        this.scalar(entry.element, entry.value[i] as number);
      }
    } else {
      this.scalar('u32', types[entry.type].code);
      this.scalar(entry.type, entry.value);
    }
  }

  #take(bytes: number): Uint8Array {
    const end = this.length + bytes;
    if (end > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(end, 2 * this.#bytes.length));
      larger.set(this.#bytes);
      this.#bytes = larger;
    }
    const place = this.#bytes.subarray(this.length, end);
    this.length = end;
    return place;
  }
}
