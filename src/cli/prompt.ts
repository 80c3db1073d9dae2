/** Where a prompt comes from: a flag, a file, or standard input. */

import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { SourceError, UsageError } from '../errors.ts';
import type { InputStream } from './context.ts';

/** The most bytes a prompt may have: far above any context, so that a wrong file is told before it fills memory. */
const MAX_PROMPT_BYTES = 16 * 2 ** 20;

/** Bytes read at once, and how long to wait where a pipe has nothing yet. */
const READ_BYTES = 64 * 1024;
const PIPE_WAIT_MS = 10;

/**
 * A file, a device, or a pipe as `<(command)` makes it.
 * @throws SourceError `source` when it cannot be read; UsageError `usage` when it is empty, too large or not UTF-8.
 */
export async function readPromptFile(path: string): Promise<string> {
  let bytes: Uint8Array;
  try {
    // Without blocking: a process that waits for a pipe's writer inside the system call cannot be interrupted.
    const handle = await open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0));
    try {
      bytes = await readAll(handle, path);
    } finally {
      await handle.close();
    }
  } catch (cause) {
    if (cause instanceof UsageError) throw cause;
    const { code, message } = cause as NodeJS.ErrnoException;
    const fault = code === 'ENOENT' ? 'no such file' : code === 'EISDIR' ? 'it is a directory' : message;
    throw new SourceError(`cannot read the prompt file ${path}: ${fault}`, {
      data: { path },
      cause,
    });
  }
  if (bytes.byteLength === 0) throw new UsageError(`the prompt file ${path} is empty`);
  return decodePrompt(bytes, path);
}

/** What a size says is no bound: devices have none. */
async function readAll(handle: FileHandle, path: string): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  for (let size = 0; ; ) {
    const chunk = new Uint8Array(READ_BYTES);
    const bytesRead = await readSome(handle, chunk);
    if (bytesRead === 0) return Buffer.concat(chunks);
    size += bytesRead;
    checkPromptSize(size, path);
    chunks.push(chunk.subarray(0, bytesRead));
  }
}

/** Waits for bytes; 0 at the end. */
async function readSome(handle: FileHandle, target: Uint8Array): Promise<number> {
  for (;;) {
    try {
      return (await handle.read(target)).bytesRead;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      await sleep(PIPE_WAIT_MS);
    }
  }
}

/** All of a stream. @throws UsageError `usage` as {@link readPromptFile}. */
export async function readPromptStream(stream: InputStream): Promise<string> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of stream) {
    const bytes = typeof chunk === 'string' ? new TextEncoder().encode(chunk) : chunk;
    size += bytes.byteLength;
    checkPromptSize(size, 'standard input');
    chunks.push(bytes);
  }
  return decodePrompt(Buffer.concat(chunks), 'standard input');
}

function checkPromptSize(size: number, where: string): void {
  if (size <= MAX_PROMPT_BYTES) return;
  throw new UsageError(`the prompt in ${where} has ${size} bytes or more; at most ${MAX_PROMPT_BYTES} are taken`);
}

/** UTF-8 without the line end that editors and `echo` put last. */
function decodePrompt(bytes: Uint8Array, where: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes).replace(/\r?\n$/, '');
  } catch (cause) {
    throw new UsageError(`the prompt in ${where} is not UTF-8 text`, { cause });
  }
}
