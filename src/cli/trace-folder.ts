/** A routing trace being recorded to a folder: `trace.bin` as tokens come, `trace.json` when all have, so that half a trace is none. */

import { type FileHandle, lstat, mkdir, open, rm, rmdir, stat } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { SourceError, UsageError } from '../errors.ts';
import { IDS_FILE, SHAPE_FILE, type TraceShape } from '../experts/trace.ts';
import { TraceWriter } from '../experts/trace-writer.ts';

export interface TraceFolder {
  /** What tokens are given to, once it is known of what they are. */
  writer(shape: Omit<TraceShape, 'tokens'>): TraceWriter;
  /** All tokens are written: makes it a trace. */
  finish(writer: TraceWriter): Promise<void>;
  /** Something failed: takes away what was written, and the folders that were made for it. */
  discard(): Promise<void>;
}

/**
 * @param path the folder, which may be there, without a trace in it or a file of one
 * @throws UsageError `usage` for no path and for a folder with a trace; SourceError `source` where it cannot be written
 */
export async function createTraceFolder(path: string): Promise<TraceFolder> {
  if (path === '') throw new UsageError('the path of the folder that the trace goes to is empty');
  const [shapePath, idsPath] = [join(path, SHAPE_FILE), join(path, IDS_FILE)];
  let made: readonly string[] = [];
  const ids = await toPath(path, async () => {
    made = await makeFolder(resolve(path));
    // What is in the way at the end would cost the whole recording.
    if (await isThere(shapePath)) throw taken(path, SHAPE_FILE);
    return await openNew(path, IDS_FILE);
  });
  /** Of the files that are there, those that are this recording's. */
  const own = [idsPath];
  return {
    writer: (shape) =>
      new TraceWriter(shape, async (bytes) => {
        await toPath(idsPath, () => ids.writeFile(bytes));
      }),
    async finish(writer) {
      await toPath(idsPath, () => ids.close());
      await toPath(shapePath, async () => {
        const shape = await openNew(path, SHAPE_FILE);
        own.push(shapePath);
        await shape.writeFile(writer.json()).finally(() => shape.close());
      });
    },
    async discard() {
      await ids.close();
      for (const file of own) await rm(file, { force: true });
      // What others have put there meanwhile keeps its folder.
      for (const folder of made.toReversed()) await rmdir(folder).catch(() => {});
    },
  };
}

/**
 * A folder with those above it. Node's own way (`recursive`) never ends where a folder is that takes none, as `/proc`.
 * @returns the folders that were not there, the topmost first
 */
async function makeFolder(path: string, withParents = true): Promise<readonly string[]> {
  try {
    await mkdir(path);
    return [path];
  } catch (error) {
    if (codeOf(error) === 'EEXIST' && (await stat(path)).isDirectory()) return [];
    if (!withParents || codeOf(error) !== 'ENOENT' || dirname(path) === path) throw error;
    const above = await makeFolder(dirname(path));
    return [...above, ...(await makeFolder(path, false))];
  }
}

async function isThere(path: string): Promise<boolean> {
  try {
    await lstat(path);
    return true;
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return false;
    throw error;
  }
}

async function openNew(path: string, name: string): Promise<FileHandle> {
  try {
    return await open(join(path, name), 'wx');
  } catch (error) {
    throw codeOf(error) === 'EEXIST' ? taken(path, name, error) : error;
  }
}

function taken(path: string, file: string, cause?: unknown): UsageError {
  return new UsageError(
    `${path}: there is a trace in it already, or a part of one (${file}); take it away, or name another folder`,
    { data: { path, file }, cause },
  );
}

function codeOf(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined;
}

async function toPath<Result>(path: string, act: () => Promise<Result>): Promise<Result> {
  try {
    return await act();
  } catch (cause) {
    if (cause instanceof UsageError) throw cause;
    throw new SourceError(`${path}: cannot be written: ${cause instanceof Error ? cause.message : cause}`, {
      data: { path },
      cause,
    });
  }
}
