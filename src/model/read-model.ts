/**
 * From an opened file to a model: the family that the file names reads it, and nothing that could change the model's
 * meaning is left unread.
 */

import { CorruptFileError, Refusal, UsageError } from '../errors.ts';
import type { ModelFile } from '../format/model-file.ts';
import type { ByteSource } from '../format/source.ts';
import { FamilyReader, type Ignored } from './family-reader.ts';
import { nameFolder } from './hugging-face/name-folder.ts';
import { type NamedModel, nameGguf } from './named-model.ts';
import type { ModelSpec } from './spec.ts';
import type { Weights } from './weights.ts';

export interface ReadModel {
  readonly spec: ModelSpec;
  readonly weights: Weights;
  /** What the weights' parts are ranges of. */
  readonly sources: readonly ByteSource[];
  /** Values in all of the file's tensors, used or not. */
  readonly parameters: number;
  /** Keys and tensors that are not used, each with the reason. */
  readonly ignored: readonly Ignored[];
}

export interface ReadModelOptions {
  /** Full names of keys (`llama.attention.x`, `rope_parameters.x`) or tensors to leave out although nobody knows what they mean. */
  readonly ignoreKeys?: readonly string[];
  /** Whether what predicts further ahead (MTP) is wanted: without, it is named as ignored. */
  readonly mtp?: boolean;
}

/**
 * Reads the model that a file describes. Only metadata and tensor names are looked at, no weights.
 * @throws CorruptFileError `corrupt_file` naming the key or tensor that is missing or contradicts the rest
 * @throws Refusal `refused` for an architecture, a key or a tensor that Conclave does not know, for safetensors without their
 * `config.json`, and where nothing predicts further ahead although it is wanted
 * @throws UsageError `usage` when `ignoreKeys` names something that the model needs
 */
export function readModel(file: ModelFile, options: ReadModelOptions = {}): ReadModel {
  const named = file.container === 'gguf' ? nameGguf(file) : nameFolder(file);
  const { family } = named;
  const reader = new FamilyReader(named.file, family.architecture, { spelling: named.spelling, mtp: options.mtp });
  const spec = family.read(reader);
  checkVocabulary(file, spec);
  if (options.mtp === true && spec.mtp === undefined) {
    throw new Refusal(
      `${named.file.name}: it holds no layer that predicts further ahead (MTP) that Conclave can draft with; ` +
        'draft with --spec lookup or a smaller model of the same vocabulary (--spec draft:FILE), or not at all',
    );
  }
  const { weights, ignored: byFamily, unreadKeys, unclaimedTensors } = reader.finish();
  const ignored = [...named.ignored, ...byFamily];
  const keys = [...named.unknownKeys, ...unreadKeys];
  const asked = new Set(options.ignoreKeys ?? []);
  const left = [...keys, ...unclaimedTensors];
  refuseUnknown(
    named,
    left.filter((name) => !asked.has(name)),
    keys,
  );
  for (const name of asked) checkMayBeIgnored(named, name, left, ignored);
  const byRequest = left
    .filter((name) => asked.has(name))
    .map((name) => ({ name, reason: 'unknown; ignored by request' }));
  return {
    spec,
    weights,
    sources: named.file.sources,
    parameters: parametersOf(named.file),
    ignored: [...ignored, ...byRequest],
  };
}

function parametersOf({ tensors }: ModelFile): number {
  let parameters = 0;
  for (const { shape } of tensors.values()) parameters += shape.reduce((product, length) => product * length, 1);
  return parameters;
}

/** An id without an embedding, or an embedding without a token, means that tokenizer and weights are not of one model. */
function checkVocabulary(file: ModelFile, spec: ModelSpec): void {
  const tokens = file.metadata.get('tokenizer.ggml.tokens');
  if (tokens === undefined) return;
  const found = tokens.type === 'array' ? `holds ${tokens.value.length} tokens` : `is of type ${tokens.type}`;
  if (tokens.type === 'array' && tokens.value.length === spec.vocabulary) return;
  throw new CorruptFileError(
    `${file.name}: tokenizer.ggml.tokens ${found}, but token_embd.weight has ${spec.vocabulary} rows; ` +
      'there must be one for each token; the file is damaged or was put together from two models',
    { data: { key: 'tokenizer.ggml.tokens', tensor: 'token_embd.weight' } },
  );
}

function refuseUnknown({ file, family }: NamedModel, unknown: readonly string[], keys: readonly string[]): void {
  if (unknown.length === 0) return;
  const shown = unknown.slice(0, 20);
  const more = unknown.length > shown.length ? ` (and ${unknown.length - shown.length} more)` : '';
  throw new Refusal(
    `${file.name}: the ${family.architecture} family does not know ${shown.join(', ')}${more}; running without could give ` +
      'wrong text. If you are sure that it does not matter, ignore each by name (--ignore-key NAME)',
    {
      reasons: shown.map((name) => ({
        row: name,
        reason: `unknown ${keys.includes(name) ? 'metadata key' : 'tensor'}`,
      })),
      data: { unknown },
    },
  );
}

function checkMayBeIgnored(
  { file, has }: NamedModel,
  name: string,
  left: readonly string[],
  ignored: readonly Ignored[],
): void {
  if (!has(name) || left.includes(name) || ignored.some((entry) => entry.name === name)) return;
  throw new UsageError(`${file.name}: ${name} cannot be ignored: Conclave knows what it means and uses it`);
}
