/** A routing trace being recorded to a folder: `trace.bin` as tokens come, `trace.json` when all have, so that half a trace is none. */

import { type FileHandle, mkdir, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SourceError, UsageError } from '../errors.ts';
import { IDS_FILE, SHAPE_FILE, type TraceShape } from '../experts/trace.ts';
import { TraceWriter } from '../experts/trace-writer.ts';

export interface TraceFolder {
  /** What tokens are given to, once it is known of what they are. */
  writer(shape: Omit<TraceShape, 'tokens'>): TraceWriter;
  /** All tokens are written: makes it a trace. */
  finish(writer: TraceWriter): Promise<void>;
  /** Something failed: takes away what was written. */
  discard(): Promise<void>;
}

/**
 * @param path the folder, which may be there, without a trace in it
 * @throws UsageError `usage` for a folder with a trace; SourceError `source` where it cannot be written
 */
export async function createTraceFolder(path: string): Promise<TraceFolder> {
  const [shapePath, idsPath] = [join(path, SHAPE_FILE), join(path, IDS_FILE)];
  const ids = await toPath(path, async () => {
    await mkdir(path, { recursive: true });
    return await openNew(path, idsPath);
  });
  return {
    writer: (shape) =>
      new TraceWriter(shape, async (bytes) => {
        await toPath(idsPath, () => ids.writeFile(bytes));
      }),
    async finish(writer) {
      await toPath(idsPath, () => ids.close());
      await toPath(shapePath, () => writeFile(shapePath, writer.json(), { flag: 'wx' }));
    },
    async discard() {
      await ids.close();
      await rm(idsPath, { force: true });
    },
  };
}

async function openNew(path: string, file: string): Promise<FileHandle> {
  try {
    return await open(file, 'wx');
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'EEXIST')) throw error;
    throw new UsageError(`${path}: there is a trace in it already; take it away, or name another folder`, {
      data: { path },
      cause: error,
    });
  }
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
