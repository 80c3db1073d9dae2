/**
 * A cursor over the head of a GGUF file. Parsing is synchronous over what has been loaded; where that does not reach,
 * more is loaded and the item at hand is read again. Nothing is allocated before the bytes it stands for are known to
 * be in the file.
 */

import { CorruptFileError } from '../errors.ts';
import { valueBytes } from './gguf-types.ts';
import type { MetadataScalar, MetadataType } from './model-file.ts';
import type { ByteSource } from './source.ts';
import { losslessUtf8, strictUtf8 } from './utf8.ts';

/** The largest known headers (vocabularies of 260,000 tokens, 60,000 tensors) take under 30 MB. */
export const MAX_HEADER_BYTES = 128 * 2 ** 20;
const FIRST_READ_BYTES = 2 ** 20;
/** The longest key or tensor name; the specification's limit for keys. */
const MAX_NAME_BYTES = 65_535;

/** Thrown inside an item when the file goes on but has not been loaded that far. */
class Shortage {
  readonly end: number;

  constructor(end: number) {
    this.end = end;
  }
}

export class HeaderReader {
  /** Bytes from the start of the file. */
  position = 0;
  /** What is being read, for errors: `key general.name`. */
  place = 'the header';
  readonly source: ByteSource;
  readonly #limit: number;
  #bytes = new Uint8Array(0);
  #view = new DataView(this.#bytes.buffer);

  constructor(source: ByteSource) {
    this.source = source;
    this.#limit = Math.min(source.size, MAX_HEADER_BYTES);
  }

  /** Runs `read` at the current position, again from the same position whenever more had to be loaded for it. */
  async item<T>(read: () => T): Promise<T> {
    const start = this.position;
    for (;;) {
      try {
        return read();
      } catch (thrown) {
        if (!(thrown instanceof Shortage)) {
          throw thrown;
        }
        this.position = start;
        await this.#load(thrown.end);
      }
    }
  }

  /** The error for what was found at `offset` (by default: here). */
  error(message: string, offset = this.position): CorruptFileError {
    return new CorruptFileError(`${this.source.name}: ${this.place}, at byte ${offset}: ${message}`, {
      data: { file: this.source.name, place: this.place, offset },
    });
  }

  u32(): number {
    this.#need(4, 'a 32-bit number');
    const value = this.#view.getUint32(this.position, true);
    this.position += 4;
    return value;
  }

  /** A number where that is exact, else a bigint. */
  u64(): number | bigint {
    this.#need(8, 'a 64-bit number');
    const value = this.#unsigned64(this.position);
    this.position += 8;
    return value;
  }

  /** A u64 that counts things of at least `bytesEach` bytes which are still to come. */
  count(what: string, bytesEach: number): number {
    const at = this.position;
    const count = this.u64();
    const left = this.#limit - this.position;
    if (count > Math.floor(left / bytesEach)) {
      throw this.error(
        `the file announces ${count} ${what}, which take at least ${bytesEach} bytes each, ${this.#leftText(left)}`,
        at,
      );
    }
    return Number(count);
  }

  /** A length-prefixed name: UTF-8, not empty, at most 65,535 bytes. */
  name(what: string): string {
    const at = this.position;
    const bytes = this.#lengthPrefixed(what);
    if (bytes.length === 0 || bytes.length > MAX_NAME_BYTES) {
      throw this.error(`${what} of ${bytes.length} bytes; expected 1 to ${MAX_NAME_BYTES}`, at);
    }
    const text = strictUtf8(bytes);
    if (text === undefined) {
      throw this.error(`${what} that is not UTF-8 (${hex(bytes)}); the file is damaged`, at);
    }
    return text;
  }

  scalar(type: MetadataType): MetadataScalar {
    if (type === 'string') {
      return losslessUtf8(this.#lengthPrefixed('a string'));
    }
    this.#need(valueBytes[type], `a value of type ${type}`);
    const value = this.#scalarAt(type, this.position);
    this.position += valueBytes[type];
    return typeof value === 'bigint' && BigInt(Number(value)) === value && Number.isSafeInteger(Number(value))
      ? Number(value)
      : value;
  }

  /** `count` values: strings and bools as plain arrays, numbers as a typed array of their own kind. */
  array(type: MetadataType, count: number): ArrayLike<MetadataScalar> {
    if (type === 'string') {
      return this.#strings(count);
    }
    const width = valueBytes[type];
    this.#need(count * width, `an array of ${count} values of type ${type}`);
    const start = this.position;
    if (type === 'bool') {
      const out: boolean[] = [];
      for (let index = 0; index < count; index++) {
        out.push(this.#scalarAt(type, start + index) as boolean);
      }
      this.position += count;
      return out;
    }
    const out = typedArray(type, count);
    for (let index = 0; index < count; index++) {
      out[index] = this.#scalarAt(type, start + index * width) as never;
    }
    this.position += count * width;
    return out as ArrayLike<MetadataScalar>;
  }

  #scalarAt(type: MetadataType, at: number): MetadataScalar {
    const view = this.#view;
    switch (type) {
      case 'u8':
        return view.getUint8(at);
      case 'i8':
        return view.getInt8(at);
      case 'u16':
        return view.getUint16(at, true);
      case 'i16':
        return view.getInt16(at, true);
      case 'u32':
        return view.getUint32(at, true);
      case 'i32':
        return view.getInt32(at, true);
      case 'f32':
        return view.getFloat32(at, true);
      case 'f64':
        return view.getFloat64(at, true);
      case 'u64':
        return view.getBigUint64(at, true);
      case 'i64':
        return view.getBigInt64(at, true);
      case 'bool': {
        const value = view.getUint8(at);
        if (value > 1) {
          throw this.error(`a bool that is ${value}; expected 0 or 1; the file is damaged`, at);
        }
        return value === 1;
      }
      case 'string':
        throw this.error('a string where a number was expected', at);
    }
  }

  #lengthPrefixed(what: string): Uint8Array {
    const at = this.position;
    const length = this.u64();
    const left = this.#limit - this.position;
    if (length > left) {
      throw this.error(`${what} of ${length} bytes, ${this.#leftText(left)}`, at);
    }
    this.#need(Number(length), what);
    this.position += Number(length);
    return this.#bytes.subarray(this.position - Number(length), this.position);
  }

  /**
   * A vocabulary is hundreds of thousands of strings, so they are decoded as one text and sliced: the first pass checks
   * the lengths, the second joins the bytes and counts the UTF-16 units of each.
   */
  #strings(count: number): string[] {
    const start = this.position;
    let total = 0;
    let at = start;
    for (let index = 0; index < count; index++) {
      this.position = at;
      this.#need(8, `the length of string ${index} of ${count}`);
      const length = this.#unsigned64(at);
      const left = this.#limit - at - 8;
      if (length > left) {
        throw this.error(`string ${index} of ${count} has ${length} bytes, ${this.#leftText(left)}`, at);
      }
      total += Number(length);
      at += 8 + Number(length);
    }
    this.position = start;
    this.#need(at - start, `${count} strings`);
    const out = this.#sliceStrings(start, count, total) ?? this.#eachString(start, count);
    this.position = at;
    return out;
  }

  /** Undefined where the strings are not all UTF-8, each by itself. */
  #sliceStrings(start: number, count: number, total: number): string[] | undefined {
    const bytes = this.#bytes;
    const joined = new Uint8Array(total);
    const units = new Uint32Array(count);
    let to = 0;
    let at = start;
    for (let index = 0; index < count; index++) {
      const length = this.#view.getUint32(at, true);
      at += 8;
      // A string that starts inside a character would be completed by the one before it.
      if (length > 0 && (bytes[at] & 0xc0) === 0x80) {
        return undefined;
      }
      let size = 0;
      for (const end = at + length; at < end; at++) {
        const byte = bytes[at];
        joined[to++] = byte;
        // Continuation bytes make no unit; a four-byte sequence makes a pair.
        size += (byte & 0xc0) === 0x80 ? 0 : byte >= 0xf0 ? 2 : 1;
      }
      units[index] = size;
    }
    const text = strictUtf8(joined);
    if (text === undefined) {
      return undefined;
    }
    const out: string[] = [];
    let from = 0;
    for (const size of units) {
      out.push(text.slice(from, from + size));
      from += size;
    }
    return out;
  }

  #eachString(start: number, count: number): string[] {
    const out: string[] = [];
    let at = start;
    for (let index = 0; index < count; index++) {
      const length = this.#view.getUint32(at, true);
      out.push(losslessUtf8(this.#bytes.subarray(at + 8, at + 8 + length)));
      at += 8 + length;
    }
    return out;
  }

  #unsigned64(at: number): number | bigint {
    const high = this.#view.getUint32(at + 4, true);
    const low = this.#view.getUint32(at, true);
    return high < 2 ** 21 ? high * 2 ** 32 + low : (BigInt(high) << 32n) | BigInt(low);
  }

  #need(bytes: number, what: string): void {
    const end = this.position + bytes;
    if (end <= this.#bytes.length) {
      return;
    }
    if (end > this.#limit) {
      throw this.error(`${what} of ${bytes} bytes was expected, ${this.#leftText(this.#limit - this.position)}`);
    }
    throw new Shortage(end);
  }

  #leftText(left: number): string {
    return this.#limit < this.source.size
      ? `but only ${left} bytes are left of the ${MAX_HEADER_BYTES} that a header may have; the file is damaged`
      : `but only ${left} bytes are left; the file is damaged, or its download was cut short`;
  }

  async #load(end: number): Promise<void> {
    const loaded = this.#bytes.length;
    const size = Math.min(this.#limit, Math.max(end, FIRST_READ_BYTES, loaded * 2));
    const bytes = new Uint8Array(size);
    bytes.set(this.#bytes);
    await this.source.readInto(loaded, bytes.subarray(loaded));
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer);
  }
}

function typedArray(type: Exclude<MetadataType, 'string' | 'bool'>, count: number) {
  switch (type) {
    case 'u8':
      return new Uint8Array(count);
    case 'i8':
      return new Int8Array(count);
    case 'u16':
      return new Uint16Array(count);
    case 'i16':
      return new Int16Array(count);
    case 'u32':
      return new Uint32Array(count);
    case 'i32':
      return new Int32Array(count);
    case 'f32':
      return new Float32Array(count);
    case 'f64':
      return new Float64Array(count);
    case 'u64':
      return new BigUint64Array(count);
    case 'i64':
      return new BigInt64Array(count);
  }
}

/** The first bytes, for an error message. */
export function hex(bytes: Uint8Array, most = 16): string {
  const shown = Array.from(bytes.subarray(0, most), (byte) => byte.toString(16).padStart(2, '0')).join(' ');
  return bytes.length > most ? `${shown} …` : shown;
}
