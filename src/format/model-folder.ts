/**
 * What lies beside the tensors of a safetensors model: `config.json` and its like, read as bounded, checked JSON. What
 * their contents mean is said elsewhere; here they are only known to be whole.
 */

import { CorruptFileError, SourceError } from '../errors.ts';
import { isJsonObject, type JsonObject, parseJson } from './json.ts';
import type { ByteSource, ModelSource, SourceFolder } from './source.ts';
import { strictUtf8 } from './utf8.ts';

/** Files that say what the tensors beside them mean; absent where the folder has none of that name. */
export interface ModelFolder {
  /** How errors call the folder. */
  readonly name: string;
  /** `config.json`: the architecture, its sizes, how weights are quantised. */
  readonly config?: JsonObject;
  /** `hf_quant_config.json`: how weights are quantised, where `config.json` leaves it out. */
  readonly quantConfig?: JsonObject;
  /** `generation_config.json`: tokens that end an answer, sampling. */
  readonly generationConfig?: JsonObject;
  /** `tokenizer.json`: the vocabulary and how text is cut. */
  readonly tokenizer?: JsonObject;
  /** `tokenizer_config.json`: special tokens by name, an older place of the chat template. */
  readonly tokenizerConfig?: JsonObject;
  /** `chat_template.jinja`. */
  readonly chatTemplate?: string;
}

type JsonFile = Exclude<keyof ModelFolder, 'name' | 'chatTemplate'>;

/** The most bytes that each file may have: several times those of the largest known model's. */
const jsonFiles: Readonly<Record<JsonFile, { readonly file: string; readonly most: number }>> = {
  config: { file: 'config.json', most: 4 * 2 ** 20 },
  quantConfig: { file: 'hf_quant_config.json', most: 16 * 2 ** 20 },
  generationConfig: { file: 'generation_config.json', most: 2 ** 20 },
  tokenizer: { file: 'tokenizer.json', most: 128 * 2 ** 20 },
  tokenizerConfig: { file: 'tokenizer_config.json', most: 16 * 2 ** 20 },
};
const TEMPLATE = { file: 'chat_template.jinja', most: 4 * 2 ** 20 } as const;

/** Names by which a folder's tensors are found, the first that is there. */
const tensorFiles = ['model.safetensors.index.json', 'model.safetensors'] as const;

/**
 * Reads the files beside a model.
 * @throws CorruptFileError `corrupt_file` naming the file that is too large, no UTF-8, or no JSON object; SourceError
 * `source` where bytes cannot be read
 */
export async function readModelFolder(folder: SourceFolder): Promise<ModelFolder> {
  const files = Object.entries(jsonFiles) as [JsonFile, { file: string; most: number }][];
  const found = await Promise.all(
    files.map(async ([name, { file, most }]) => {
      const text = await readText(folder, file, most);
      return text === undefined ? [] : [[name, parseObject(text.text, text.name)] as const];
    }),
  );
  const template = await readText(folder, TEMPLATE.file, TEMPLATE.most);
  return { name: folder.name, ...Object.fromEntries(found.flat()), chatTemplate: template?.text };
}

/**
 * The model that a folder holds: its index of shards, else its one file of tensors.
 * @throws SourceError `source` where it has neither
 */
export async function modelInFolder(folder: SourceFolder): Promise<ModelSource> {
  for (const fileName of tensorFiles) {
    if (await folder.has(fileName)) return { file: await folder.open(fileName), fileName, folder };
  }
  throw new SourceError(
    `${folder.name}: is a directory without ${tensorFiles.join(' or ')}; give a file in it, or the folder of a ` +
      'safetensors model',
    { data: { path: folder.name } },
  );
}

async function readText(
  folder: SourceFolder,
  fileName: string,
  most: number,
): Promise<{ readonly text: string; readonly name: string } | undefined> {
  if (!(await folder.has(fileName))) return undefined;
  const source = await folder.open(fileName);
  try {
    return { text: await textOf(source, most), name: source.name };
  } finally {
    await source.close();
  }
}

/**
 * The text of a whole file.
 * @throws CorruptFileError `corrupt_file` where it has more than `most` bytes, or is no UTF-8
 */
export async function textOf(source: ByteSource, most: number): Promise<string> {
  if (source.size > most) throw corrupt(source.name, `it has ${source.size} bytes; expected at most ${most}`);
  const bytes = new Uint8Array(source.size);
  await source.readInto(0, bytes);
  const text = strictUtf8(bytes);
  if (text === undefined) throw corrupt(source.name, 'it is not UTF-8; the file is damaged');
  return text;
}

/** @throws CorruptFileError `corrupt_file` for what is no JSON object, or has a name twice */
export function parseObject(text: string, where: string): JsonObject {
  const { value, duplicate, error } = { duplicate: undefined, ...parseJson(text) };
  if (error !== undefined) throw corrupt(where, `it is not JSON (${error})`);
  if (duplicate !== undefined)
    throw corrupt(where, `the name ${JSON.stringify(duplicate)} is there twice; expected once`);
  if (!isJsonObject(value)) throw corrupt(where, 'JSON, but not an object; expected names and values');
  return value;
}

function corrupt(where: string, message: string): CorruptFileError {
  return new CorruptFileError(`${where}: ${message}`, { data: { file: where } });
}
