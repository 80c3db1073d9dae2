/**
 * What a model is read from: ranged reads over bytes of a known size. Nothing here knows about files or networks;
 * `platform/` opens them.
 */

import { CorruptFileError } from '../errors.ts';

/** A range of bytes that repeats: wherever bytes i and i + `period` both lie in it, they are equal. */
export interface Repetition {
  readonly offset: number;
  readonly bytes: number;
  /** In bytes, less than `bytes`. */
  readonly period: number;
}

/** Where a file of this machine can be opened again, on any thread; plain data. Beside the path stands what tells the file itself. */
export interface FileAddress {
  /** Absolute. */
  readonly path: string;
  readonly size: number;
  readonly modifiedNs: bigint;
  readonly device: bigint;
  readonly inode: bigint;
}

/** A sequence of bytes that can be read in ranges, several at once. */
export interface ByteSource {
  /** How errors call it: a path or a URL. */
  readonly name: string;
  /** Size in bytes. */
  readonly size: number;
  /**
   * Ranges whose bytes repeat, none within another: a reader may read one period and copy the rest. For bytes that are
   * made (synthetic weights); files state none.
   */
  readonly repeats?: readonly Repetition[];
  /**
   * Fills `target` with the bytes from `offset` on. `target` may lie in shared memory.
   * @throws SourceError `source` when the bytes cannot be read, or when there are fewer.
   */
  readInto(offset: number, target: Uint8Array): Promise<void>;
  close(): Promise<void>;
  /** Of a file of this machine: where the same bytes can be had without this source. */
  readonly fileAddress?: FileAddress;
  /**
   * Says that the bytes are those that there were when the source was opened: what was read before it was asked is to be trusted
   * once it has settled. Present only where `readInto` fills any memory, a mapped buffer's too, from other threads, and has let
   * go of it when it has settled, whichever way.
   * @throws SourceError `source` when they are not
   */
  verify?(): Promise<void>;
}

/** A source that is read beside this thread, into any memory. */
export type LocalFile = ByteSource & Required<Pick<ByteSource, 'fileAddress' | 'verify'>>;

/** Where a model's files lie side by side (the shards of a split model). */
export interface SourceFolder {
  readonly name: string;
  /** @throws SourceError `source` when there is no such file. */
  open(fileName: string): Promise<ByteSource>;
  has(fileName: string): Promise<boolean>;
}

/** A file to load a model from, and the folder around it (absent where there is none: a Blob, bytes in memory). */
export interface ModelSource {
  readonly file: ByteSource;
  readonly fileName: string;
  readonly folder?: SourceFolder;
}

/**
 * What a model can be loaded from: a path (Node), an http(s) address whose server answers range requests, a File or Blob,
 * or any byte source. A safetensors model is its folder's path, an address that ends in a slash, or its Files as a list.
 */
export type SourceInput = string | URL | Blob | readonly File[] | ByteSource | ModelSource;

/** The period that `source` states of all the `bytes` from `offset` on. */
export function periodOf(source: ByteSource, offset: number, bytes: number): number | undefined {
  const around = source.repeats?.find(
    (range) => range.offset <= offset && offset + bytes <= range.offset + range.bytes,
  );
  return around !== undefined && around.period < bytes ? around.period : undefined;
}

/** `bytes` as a source: for tests, and for bytes that are in memory anyway. */
export function memorySource(bytes: Uint8Array, name = 'memory'): ByteSource {
  return {
    name,
    size: bytes.byteLength,
    async readInto(offset, target) {
      if (offset + target.byteLength > bytes.byteLength) {
        throw new CorruptFileError(
          `${name}: wanted bytes ${offset} to ${offset + target.byteLength}, but it has only ${bytes.byteLength}`,
        );
      }
      target.set(bytes.subarray(offset, offset + target.byteLength));
    },
    async close() {},
  };
}
