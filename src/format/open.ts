/** Opens a model file of any known container. Content decides, never the name; what is no model is called by its name. */

import { CorruptFileError, Refusal } from '../errors.ts';
import type { OpenOptions } from './gguf.ts';
import { openGguf } from './gguf.ts';
import { hex } from './gguf-reader.ts';
import { looksLikeJsonObject } from './json.ts';
import type { ModelFile } from './model-file.ts';
import { openSafetensors } from './safetensors.ts';
import type { ByteSource, ModelSource } from './source.ts';

export type { OpenOptions } from './gguf.ts';

const SNIFFED_BYTES = 512;

interface Stranger {
  /** How such a file begins: texts in lower case behind white space, or bytes as Latin-1. */
  readonly begins: readonly string[];
  readonly text?: boolean;
  readonly what: string;
  readonly advice: string;
}

const UNPACK = 'unpack it';
const OTHER_FILE = 'take the model as GGUF or safetensors';

/** Files of other kinds that people try to load, and what to do about them. */
const strangers: readonly Stranger[] = [
  {
    begins: ['<!doctype html', '<html', '<head', '<body', '<script'],
    text: true,
    what: 'an HTML page',
    advice: 'the download probably failed or asked for a login: download the model again',
  },
  {
    begins: ['<?xml', '<error'],
    text: true,
    what: 'an XML document',
    advice: 'the download probably failed: download the model again',
  },
  {
    begins: ['version https://git-lfs'],
    text: true,
    what: 'a Git LFS pointer, not the file itself',
    advice: 'fetch the contents with "git lfs pull"',
  },
  {
    begins: ['PK\x03\x04', 'PK\x05\x06', 'PK\x07\x08'],
    what: 'a zip archive (or a PyTorch checkpoint, which is one)',
    advice: `${UNPACK}, or ${OTHER_FILE}`,
  },
  { begins: ['\x1f\x8b'], what: 'a gzip archive', advice: UNPACK },
  { begins: ['BZh'], what: 'a bzip2 archive', advice: UNPACK },
  { begins: ['\xfd7zXZ\x00'], what: 'an xz archive', advice: UNPACK },
  { begins: ['\x28\xb5\x2f\xfd'], what: 'a Zstandard archive', advice: UNPACK },
  { begins: ['7z\xbc\xaf\x27\x1c'], what: 'a 7z archive', advice: UNPACK },
  { begins: ['Rar!'], what: 'a RAR archive', advice: UNPACK },
  { begins: ['\x80\x02', '\x80\x03', '\x80\x04', '\x80\x05'], what: 'a Python pickle', advice: OTHER_FILE },
  { begins: ['\x89HDF'], what: 'an HDF5 file', advice: OTHER_FILE },
];

/** The containers before GGUF: their magics are u32 values, so they stand backwards in the file. */
const ancestors: Readonly<Record<string, string>> = { lmgg: 'GGML', fmgg: 'GGMF', tjgg: 'GGJT', algg: 'GGLA' };

/**
 * Reads the head of a model: a GGUF file or any shard of a set of them, a safetensors file, or the
 * `model.safetensors.index.json` of a folder of them. The result owns `source.file`; when this throws, it stays the
 * caller's.
 * @throws CorruptFileError `corrupt_file` for damage, contradictions, missing shards and files that are no model;
 * Refusal `refused` for sound files that are not supported; SourceError `source` where bytes cannot be read.
 */
export async function openModelFile(source: ModelSource, options: OpenOptions = {}): Promise<ModelFile> {
  const { file } = source;
  const head = new Uint8Array(Math.min(SNIFFED_BYTES, file.size));
  await file.readInto(0, head);
  const text = Array.from(head, (byte) => String.fromCharCode(byte)).join('');
  if (text.startsWith('GGUF')) {
    return openGguf(source, options);
  }
  if (looksLikeJsonObject(head) || looksLikeSafetensors(file, head)) {
    return openSafetensors(source);
  }
  throw strangerError(file, head, text);
}

/** A little-endian length that fits the file, then an opening brace; or a file of that name, for its better messages. */
function looksLikeSafetensors(file: ByteSource, head: Uint8Array): boolean {
  if (head.length < 8) {
    return false;
  }
  const length = new DataView(head.buffer).getBigUint64(0, true);
  return head[8] === 0x7b || (Number(length) <= file.size - 8 && file.name.endsWith('.safetensors'));
}

function strangerError(file: ByteSource, head: Uint8Array, text: string): CorruptFileError | Refusal {
  const data = { file: file.name, offset: 0, begins: hex(head) };
  if (head.length === 0) {
    return new CorruptFileError(
      `${file.name}: the file is empty; expected a GGUF or safetensors model: download it again`,
      { data },
    );
  }
  const ancestor = ancestors[text.slice(0, 4)];
  if (ancestor !== undefined) {
    return new Refusal(
      `${file.name}: a ${ancestor} file, the format before GGUF, is not supported; supported are GGUF and safetensors: ` +
        'convert the model again with current tools',
      { data },
    );
  }
  const lowerCase = text.trimStart().toLowerCase();
  const stranger = strangers.find((row) => row.begins.some((start) => (row.text ? lowerCase : text).startsWith(start)));
  if (stranger !== undefined) {
    return new CorruptFileError(
      `${file.name}: this is ${stranger.what}; expected a GGUF or safetensors model: ${stranger.advice}`,
      { data },
    );
  }
  const shown = text.slice(0, 8).replace(/[^\x20-\x7e]/g, '.');
  return new CorruptFileError(
    `${file.name}: not a model: at byte 0 found "${shown}" (${hex(head)}); expected "GGUF", or the length and the opening ` +
      'brace of a safetensors header; the file is damaged, or something else',
    { data },
  );
}
