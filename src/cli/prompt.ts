/** Where a prompt comes from: a flag, a file, or standard input. */

import { readFile, stat } from 'node:fs/promises';
import { SourceError, UsageError } from '../errors.ts';
import type { InputStream } from './context.ts';

/** The most bytes a prompt may have: far above any context, so that a wrong file is told before it fills memory. */
const MAX_PROMPT_BYTES = 16 * 2 ** 20;

/** @throws SourceError `source` when it cannot be read; UsageError `usage` when it is too large or not UTF-8. */
export async function readPromptFile(path: string): Promise<string> {
  let bytes: Uint8Array;
  try {
    const { size } = await stat(path);
    checkPromptSize(size, path);
    bytes = await readFile(path);
  } catch (cause) {
    if (cause instanceof UsageError) throw cause;
    const { code, message } = cause as NodeJS.ErrnoException;
    const fault = code === 'ENOENT' ? 'no such file' : code === 'EISDIR' ? 'it is a directory' : message;
    throw new SourceError(`cannot read the prompt file ${path}: ${fault}`, {
      data: { path },
      cause,
    });
  }
  return decodePrompt(bytes, path);
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
