/** What a format's reader returns: named metadata and named tensors, checked against the bytes that are there. */

import type { FormatId } from '../quant/index.ts';
import type { ModelFolder } from './model-folder.ts';
import type { ByteSource } from './source.ts';

/** The value types of GGUF metadata; other formats map theirs onto these. */
export type MetadataType =
  | 'u8'
  | 'i8'
  | 'u16'
  | 'i16'
  | 'u32'
  | 'i32'
  | 'u64'
  | 'i64'
  | 'f32'
  | 'f64'
  | 'bool'
  | 'string';

/** One metadata value. 64-bit integers are numbers where they are safe integers, else bigints. */
export type MetadataScalar = number | bigint | boolean | string;
export type MetadataValue =
  | { readonly type: MetadataType; readonly value: MetadataScalar }
  | {
      readonly type: 'array';
      readonly element: MetadataType;
      /** Numbers come as a typed array of their own kind (`f32` as Float32Array …), the rest as a plain array. */
      readonly value: ArrayLike<MetadataScalar>;
    };

/** Where a tensor's bytes are and what they mean. */
export interface TensorInfo {
  readonly name: string;
  readonly format: FormatId;
  /** Row-major, outermost first: a matrix is [rows (out), columns (in)], stacked experts are [experts, rows, columns]. */
  readonly shape: readonly number[];
  /** Which of {@link ModelFile.sources}. */
  readonly source: number;
  /** Bytes from the start of that source. */
  readonly offset: number;
  readonly bytes: number;
  /** Its bytes are gathered, as they are read, from where the file has them (`views.ts`). */
  readonly gathered?: true;
}

export interface ModelFile {
  readonly container: 'gguf' | 'safetensors';
  /** Format version, as the file gives it. */
  readonly version: number;
  /** The file's name as the person gave it. */
  readonly name: string;
  readonly metadata: ReadonlyMap<string, MetadataValue>;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly sources: readonly ByteSource[];
  /** Of a safetensors model that lies in a folder: what the files beside its tensors say. */
  readonly folder?: ModelFolder;
  close(): Promise<void>;
}
