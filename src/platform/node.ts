/** The platform of Node: files by path, worker threads, the machine's cores and memory. */

import { type BigIntStats, constants, fstatSync } from 'node:fs';
import type { FileHandle } from 'node:fs/promises';
import { access, open, readFile, stat } from 'node:fs/promises';
import { availableParallelism, freemem, totalmem } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type ResourceLimits, Worker } from 'node:worker_threads';
import { InternalError, OutOfMemoryError, SourceError, UsageError } from '../errors.ts';
import { modelInFolder } from '../format/model-folder.ts';
import type { FileAddress, LocalFile, ModelSource, SourceFolder } from '../format/source.ts';
import { openDawn } from './dawn.ts';
import { detectFeatures } from './features.ts';
import type { Platform, PlatformWorker, SourceInput, WorkerEntry } from './platform.ts';
import { checkRange, openWebInput } from './web-source.ts';
import { makeMailbox } from './worker-port.ts';

/** One read call's bytes at the most: Node takes less than 2 GiB. */
const READ_CHUNK = 2 ** 30;

/** `.ts` in the checkout, `.js` in the built package. */
const ending = import.meta.url.endsWith('.ts') ? '.ts' : '.js';

const sources: Readonly<Record<WorkerEntry, string>> = {
  'engine-worker': '../engine/engine-worker.ts',
  'cpu-worker': '../backend/cpu/cpu-worker.ts',
  'plane-worker': '../backend/gpu/plane-worker.ts',
  'template-worker': '../tokenizer/template-worker.ts',
};

/** A worker's file: the source in the checkout, one bundle in `dist/workers/` of the package, from wherever this code is in it. */
function entryFile(entry: WorkerEntry): URL {
  return new URL(ending === '.ts' ? sources[entry] : `../workers/${entry}.js`, import.meta.url);
}

/** A template that never ends makes garbage until it is stopped; a small young heap keeps that small. */
const limits: Readonly<Partial<Record<string, ResourceLimits>>> = {
  'template-worker': { maxYoungGenerationSizeMb: 4 },
};

/** Workers take over Node's flags, but `--input-type`, which a program given by `-e` needs, no file can start with. */
const inherited = process.execArgv.some((flag) => flag.startsWith('--input-type')) ? { execArgv: [] } : {};

/** The built files: `build/` of the checkout, `dist/build/` of the package. */
const assets = new URL(ending === '.ts' ? '../../build/' : '../build/', import.meta.url);

export const nodePlatform: Platform = {
  name: 'node',
  openSource,
  async openAgain(address) {
    const file = await openFile(address.path);
    if (isSame(file.fileAddress, address)) return file;
    await file.close();
    throw changed(address.path, address, file.fileAddress);
  },
  spawnWorker: (entry, data) => spawnNodeWorker(entryFile(entry), entry, data),
  features: detectFeatures,
  gpu: openDawn,
  // A third faster than `set`, which takes shared memory by small pieces.
  copyBytes(from, to) {
    Buffer.from(from.buffer, from.byteOffset, from.byteLength).copy(to);
  },
  threads: () => availableParallelism(),
  freeMemoryBytes,
  async readAsset(name) {
    const url = new URL(name, assets);
    try {
      return new Uint8Array(await readFile(url));
    } catch (cause) {
      throw new SourceError(
        `${fileURLToPath(url)} is missing; run \`npm run build:wasm\` in a checkout, or install the package again`,
        { cause },
      );
    }
  },
};

async function openSource(input: SourceInput): Promise<ModelSource> {
  const web = await openWebInput(input);
  if (web !== undefined) return web;
  if (typeof input !== 'string' && !(input instanceof URL)) {
    const found =
      typeof input === 'function' ? 'a function' : Object(input) === input ? input?.constructor?.name : String(input);
    throw new UsageError(
      `a model is loaded from a path, a URL, a Blob, a list of Files or a byte source; found ${found ?? 'an object'}`,
    );
  }
  if (input === '') throw new UsageError('the path of the model is empty');
  if (input instanceof URL && input.protocol !== 'file:') {
    throw new UsageError(`${input.href}: cannot load from ${input.protocol} addresses; use http:, https: or file:`);
  }
  const path = input instanceof URL ? fileURLToPath(input) : input;
  if (await isDirectory(path)) return modelInFolder(folderAt(path));
  return { file: await openFile(path), fileName: basename(path), folder: folderAt(dirname(path)) };
}

function folderAt(path: string): SourceFolder {
  return {
    name: path,
    open: (fileName) => openFile(join(path, fileName)),
    has: (fileName) =>
      access(join(path, fileName)).then(
        () => true,
        () => false,
      ),
  };
}

/** Whether there is a directory; what else is wrong with a path is told when it is opened. */
function isDirectory(path: string): Promise<boolean> {
  return stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );
}

async function openFile(path: string): Promise<LocalFile> {
  let handle: FileHandle;
  try {
    // Without blocking: a named pipe would wait for a writer, and a process that waits there cannot even be interrupted.
    handle = await open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0));
  } catch (cause) {
    throw new SourceError(`${path}: ${openFault(cause)}`, { cause, data: { path } });
  }
  try {
    const found = await handle.stat({ bigint: true });
    if (found.isDirectory()) throw new SourceError(`${path}: is a directory; give a file in it`, { data: { path } });
    if (!found.isFile()) throw new SourceError(`${path}: is not a regular file; give one`, { data: { path } });
    return fileSource(path, addressOf(resolve(path), found), handle);
  } catch (error) {
    await handle.close();
    throw error;
  }
}

function addressOf(path: string, { size, mtimeNs, dev, ino }: BigIntStats): FileAddress {
  return { path, size: Number(size), modifiedNs: mtimeNs, device: dev, inode: ino };
}

function isSame(one: FileAddress, other: FileAddress): boolean {
  return (['size', 'modifiedNs', 'device', 'inode'] as const).every((fact) => one[fact] === other[fact]);
}

function changed(name: string, before: FileAddress, now: FileAddress): SourceError {
  const describe = ({ size, modifiedNs }: FileAddress) =>
    `${size} bytes, written ${new Date(Number(modifiedNs / 1_000_000n)).toISOString()}`;
  return new SourceError(
    `${name}: found ${describe(now)}, expected the file of ${describe(before)}, that was opened before;` +
      ' leave a model file as it is while the model is loaded',
    { data: { path: before.path } },
  );
}

function fileSource(name: string, fileAddress: FileAddress, handle: FileHandle): LocalFile {
  const { size } = fileAddress;
  const source = {
    name,
    size,
    async readInto(offset: number, target: Uint8Array) {
      checkRange(name, size, offset, target.byteLength);
      for (let done = 0; done < target.byteLength; ) {
        const length = Math.min(READ_CHUNK, target.byteLength - done);
        let bytesRead: number;
        try {
          ({ bytesRead } = await handle.read(target, done, length, offset + done));
        } catch (cause) {
          throw new SourceError(`${name}: reading bytes ${offset + done} to ${offset + done + length} failed`, {
            cause,
          });
        }
        if (bytesRead === 0) {
          throw new SourceError(
            `${name}: ends at byte ${offset + done}, it had ${size} when it was opened; was it changed?`,
          );
        }
        done += bytesRead;
      }
    },
    close: () => handle.close(),
  };
  const verify = async () => {
    let now: FileAddress;
    try {
      // By this thread: another one would come to it only after all reads that are waiting.
      now = addressOf(fileAddress.path, fstatSync(handle.fd, { bigint: true }));
    } catch (cause) {
      throw new SourceError(`${name}: what became of the file cannot be told`, { cause });
    }
    if (!isSame(fileAddress, now)) throw changed(name, fileAddress, now);
  };
  // Not enumerable: a source that is made by spreading this one and reads otherwise has other bytes than the file.
  return Object.defineProperties(source as LocalFile, {
    fileAddress: { value: fileAddress },
    verify: { value: verify },
  });
}

function openFault(error: unknown): string {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  if (code === 'ENOENT' || code === 'ENOTDIR') return 'no such file';
  if (code === 'EACCES' || code === 'EPERM') return 'no permission to read it';
  if (code === 'EISDIR') return 'is a directory; give a file in it';
  return error instanceof Error ? error.message : String(error);
}

/** A worker thread that runs the file at `url`; `entry` is how errors call it. */
export function spawnNodeWorker(url: URL, entry: string, data: unknown): PlatformWorker {
  const worker = new Worker(url, {
    workerData: data,
    name: `conclave-${entry}`,
    resourceLimits: limits[entry],
    ...inherited,
  });
  const mailbox = makeMailbox();
  const faults = makeMailbox();
  let ended = false;
  const fail = (error: unknown) => {
    if (ended) return;
    ended = true;
    faults.deliver(error);
  };
  worker.on('message', mailbox.deliver);
  worker.on('error', (error: unknown) => {
    const code = error instanceof Error && 'code' in error ? error.code : undefined;
    fail(
      code === 'ERR_WORKER_OUT_OF_MEMORY'
        ? new OutOfMemoryError(`the ${entry} ran out of memory`, { cause: error })
        : error,
    );
  });
  worker.on('messageerror', fail);
  worker.on('exit', (code) => fail(new InternalError(`the ${entry} ended by itself with code ${code}`)));
  return {
    postMessage: (message, transfer) => worker.postMessage(message, transfer as never),
    onMessage: mailbox.listen,
    onError: faults.listen,
    async terminate() {
      ended = true;
      await worker.terminate();
    },
    ref: () => worker.ref(),
    unref: () => worker.unref(),
  };
}

/** What the system has free, page cache counted as free; less where a container holds the process to less. */
function freeMemoryBytes(): number {
  const limit = process.constrainedMemory();
  if (!(limit > 0 && limit < totalmem())) return freemem();
  // The container's own figure counts cached files as used, so that a model read once would no longer fit.
  return Math.max(0, Math.min(freemem(), limit - process.memoryUsage.rss()));
}
