/** Byte sources that need nothing but the web's own objects: a Blob, a URL that answers range requests. */

import { SourceError, UsageError } from '../errors.ts';
import { modelInFolder } from '../format/model-folder.ts';
import type { ByteSource, ModelSource, SourceFolder } from '../format/source.ts';
import type { SourceInput } from './platform.ts';

/** Bytes of a Blob read at a time, so that its copy stays small. */
const BLOB_CHUNK = 16 * 2 ** 20;

/** What needs no platform: Blobs, a web address, or a source that somebody else made. Undefined for anything else. */
export async function openWebInput(input: SourceInput): Promise<ModelSource | undefined> {
  if (typeof input !== 'string' && (typeof input !== 'object' || input === null)) return undefined;
  if (Array.isArray(input)) return openFiles(input);
  if (typeof input === 'object' && 'file' in input) {
    checkSource(input.file);
    return input;
  }
  if (typeof Blob !== 'undefined' && input instanceof Blob) {
    const file = blobSource(input);
    return { file, fileName: file.name };
  }
  if (typeof input === 'string' || input instanceof URL) {
    if (!/^https?:/i.test(String(input))) return undefined;
    return openUrl(new URL(input));
  }
  if (typeof input === 'object' && 'readInto' in input) {
    checkSource(input);
    return { file: input, fileName: lastPart(input.name) };
  }
  return undefined;
}

/** That a source made elsewhere is one, before a size that is none sizes anything. @throws UsageError `usage` */
function checkSource(source: Partial<ByteSource> | undefined): void {
  const { name, size, readInto, close } = source ?? {};
  if (
    typeof name !== 'string' ||
    !(Number.isSafeInteger(size) && size! >= 0) ||
    typeof readInto !== 'function' ||
    typeof close !== 'function'
  ) {
    throw new UsageError(
      `a byte source: found name ${String(name)}, size ${String(size)}, readInto ${typeof readInto}, close ${typeof close}; ` +
        'expected a text, a whole number of bytes from 0 on, and two functions',
    );
  }
}

export function blobSource(blob: Blob): ByteSource {
  const name = 'name' in blob && typeof blob.name === 'string' ? blob.name : 'Blob';
  return {
    name,
    size: blob.size,
    async readInto(offset, target) {
      checkRange(name, blob.size, offset, target.byteLength);
      for (let done = 0; done < target.byteLength; done += BLOB_CHUNK) {
        const end = Math.min(target.byteLength, done + BLOB_CHUNK);
        try {
          target.set(new Uint8Array(await blob.slice(offset + done, offset + end).arrayBuffer()), done);
        } catch (cause) {
          throw new SourceError(
            `${name}: reading bytes ${offset + done} to ${offset + end} failed; was the file changed?`,
            { cause },
          );
        }
      }
    },
    async close() {},
  };
}

/**
 * Files that a person chose together, as a folder. Of one file it is that one which is the model; of several, what a
 * folder's model is called.
 * @throws UsageError `usage` for what are no Files, and for names that stand twice
 */
async function openFiles(files: readonly File[]): Promise<ModelSource> {
  const byName = new Map<string, File>();
  for (const file of files) {
    if (typeof Blob === 'undefined' || !(file instanceof Blob) || typeof file.name !== 'string') {
      throw new UsageError('a list to load a model from holds something that is no File; give Files, with their names');
    }
    if (byName.has(file.name)) throw new UsageError(`${file.name}: two files have this name; give one of each`);
    byName.set(file.name, file);
  }
  const open = (fileName: string): ByteSource => {
    const file = byName.get(fileName);
    if (file === undefined) throw new SourceError(`${fileName}: is not among the ${files.length} files`);
    return blobSource(file);
  };
  const folder: SourceFolder = {
    name: `${files.length} files`,
    open: async (fileName) => open(fileName),
    has: async (fileName) => byName.has(fileName),
  };
  const tensors = [...byName.keys()].filter((name) => /\.(?:gguf|safetensors)$/i.test(name)).sort();
  const whole = tensors.length === 1 || tensors.every((name) => /\.gguf$/i.test(name));
  const only = files.length === 1 ? files[0]?.name : whole ? tensors[0] : undefined;
  if (only === undefined) return modelInFolder(folder);
  return { file: open(only), fileName: only, folder };
}

/** A file at a web address, and its folder: the addresses beside it. An address that ends in a slash is a folder. */
async function openUrl(url: URL): Promise<ModelSource> {
  const folderUrl = new URL('.', url);
  const at = (fileName: string) => {
    const sibling = new URL(encodeURIComponent(fileName), folderUrl);
    sibling.search = url.search;
    return sibling;
  };
  const folder: SourceFolder = {
    name: folderUrl.href,
    open: (fileName) => openRanges(at(fileName)),
    has: async (fileName) => (await request(at(fileName), { method: 'HEAD' })).ok,
  };
  if (url.pathname.endsWith('/')) return modelInFolder(folder);
  return { file: await openRanges(url), fileName: decodeURIComponent(lastPart(url.pathname)), folder };
}

async function openRanges(url: URL): Promise<ByteSource> {
  const name = url.href;
  const first = await request(url, { headers: { range: 'bytes=0-0' } });
  await first.body?.cancel();
  const size = totalOf(first);
  if (first.status !== 206 || size === undefined) {
    const found = first.ok ? 'it sends only whole files' : `it answered ${first.status} ${first.statusText}`.trimEnd();
    const todo = first.ok
      ? 'use a server that answers range requests, or download the file first'
      : 'check the address';
    throw new SourceError(`${name}: the server must send parts of the file, but ${found}; ${todo}`, {
      data: { status: first.status },
    });
  }
  return {
    name,
    size,
    async readInto(offset, target) {
      checkRange(name, size, offset, target.byteLength);
      if (target.byteLength > 0) await readRange(url, size, offset, target);
    },
    async close() {},
  };
}

async function readRange(url: URL, size: number, offset: number, target: Uint8Array): Promise<void> {
  const end = offset + target.byteLength;
  const where = `${url.href}: bytes ${offset} to ${end}`;
  const response = await request(url, { headers: { range: `bytes=${offset}-${end - 1}` } });
  if (response.status !== 206 || response.body === null) {
    await response.body?.cancel();
    throw new SourceError(`${where}: the server answered ${response.status}, expected 206`, {
      data: { status: response.status },
    });
  }
  if (totalOf(response) !== size) {
    await response.body.cancel();
    throw new SourceError(`${where}: the file on the server is now of another size; load it again`);
  }
  const reader = response.body.getReader();
  let done = 0;
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const bytes = part.value.subarray(0, target.byteLength - done);
      target.set(bytes, done);
      done += bytes.byteLength;
    }
  } catch (cause) {
    throw new SourceError(`${where}: the connection broke after ${done} bytes; try again`, { cause });
  }
  if (done < target.byteLength) throw new SourceError(`${where}: the server sent only ${done} bytes; try again`);
}

async function request(url: URL, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch (cause) {
    throw new SourceError(`${url.href}: the server cannot be reached (${reasonOf(cause)})`, { cause });
  }
}

/** The whole file's size, from `content-range: bytes 0-0/SIZE`. */
function totalOf(response: Response): number | undefined {
  const total = Number(/\/(\d+)$/.exec(response.headers.get('content-range') ?? '')?.[1]);
  return Number.isSafeInteger(total) ? total : undefined;
}

function reasonOf(error: unknown): string {
  const inner = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return inner instanceof Error ? inner.message : String(inner);
}

/** @throws SourceError `source` when the range leaves the source. */
export function checkRange(name: string, size: number, offset: number, bytes: number): void {
  if (Number.isSafeInteger(offset) && offset >= 0 && offset + bytes <= size) return;
  throw new SourceError(`${name}: wanted bytes ${offset} to ${offset + bytes}, but it has only ${size}`);
}

/** What stands after the last slash. */
export function lastPart(path: string): string {
  return path.slice(Math.max(path.lastIndexOf('/'), path.lastIndexOf('\\')) + 1);
}
