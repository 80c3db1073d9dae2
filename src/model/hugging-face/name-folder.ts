/** A safetensors model and the files beside it, under GGUF's names, so that one family reads both containers. */

import { CorruptFileError, Refusal } from '../../errors.ts';
import type { JsonObject } from '../../format/json.ts';
import type { ModelFile, TensorInfo } from '../../format/model-file.ts';
import { families } from '../families/index.ts';
import type { Family } from '../family.ts';
import type { NamedModel } from '../named-model.ts';
import { nameKeys } from './config-keys.ts';
import { ConfigKeys } from './config-reader.ts';
import type { Dialect } from './dialect.ts';
import { FUSED, patternOf, type TensorNames, tensorNames } from './tensor-names.ts';

/**
 * @throws Refusal `refused` where there is no `config.json`, and for a `model_type` or a value in it that is not supported
 * @throws CorruptFileError `corrupt_file` naming a key whose value cannot be meant
 */
export function nameFolder(file: ModelFile): NamedModel {
  const { folder } = file;
  if (folder?.config === undefined) {
    throw new Refusal(
      `${file.name}: a safetensors file says nothing of its model, and there is no config.json beside it that does; ` +
        'download the whole folder and give its path, or take the model as GGUF',
    );
  }
  const { config } = folder;
  const { family, dialect } = familyOf(config, folder.name);
  const keys = nameKeys(config, family.architecture, dialect, folder.name);
  const names = tensorNames(dialect.tensors);
  const tensors = nameTensors(file, names);
  return {
    family,
    file: { ...file, name: folder.name, metadata: keys.metadata, tensors },
    spelling: {
      key: (name) => keys.names.get(name) ?? name,
      tensor: (name) => tensors.get(name)?.name ?? names.own(name),
      sizes: 'config.json',
      layers: 'model.layers.N.…',
    },
    ignored: keys.ignored,
    unknownKeys: keys.unknown,
    has: (name) => file.tensors.has(name) || new ConfigKeys(config, '', folder.name).value(name) !== undefined,
  };
}

function familyOf(config: JsonObject, where: string): { readonly family: Family; readonly dialect: Dialect } {
  const { model_type: found } = config;
  if (typeof found !== 'string') {
    throw new CorruptFileError(
      `${where}: model_type of config.json is ${found === undefined ? 'missing' : `of type ${typeof found}`}; expected a ` +
        'text such as "qwen3_moe"; the folder does not say what model it holds',
      { data: { key: 'model_type' } },
    );
  }
  const all = families.flatMap((family) => (family.dialects ?? []).map((dialect) => ({ family, dialect })));
  const chosen = all.find(({ dialect }) => dialect.modelType === found);
  if (chosen === undefined) {
    throw new Refusal(
      `${where}: the model_type ${JSON.stringify(found.slice(0, 60))} of config.json is not supported; supported are ` +
        all.map(({ dialect }) => dialect.modelType).join(', '),
      { data: { architecture: found } },
    );
  }
  return chosen;
}

/** Every tensor under GGUF's name, or under its own where nobody knows it. */
function nameTensors(file: ModelFile, names: TensorNames): ReadonlyMap<string, TensorInfo> {
  const named = new Map<string, TensorInfo>();
  const put = (name: string, tensor: TensorInfo) => {
    const other = named.get(name);
    if (other !== undefined) {
      throw new CorruptFileError(
        `${file.name}: the tensors ${other.name} and ${tensor.name} mean the same; expected one of them`,
        { data: { tensor: tensor.name } },
      );
    }
    named.set(name, tensor);
  };
  for (const tensor of file.tensors.values()) {
    const { pattern, numbers } = patternOf(tensor.name);
    if (pattern === FUSED) for (const [name, half] of halves(file, tensor, numbers[0] as string)) put(name, half);
    else put(names.gguf(tensor.name) ?? tensor.name, tensor);
  }
  return named;
}

/** Gate and up of each expert in a fused tensor [experts, 2 · inner, hidden]: ranges of its bytes. */
function halves(file: ModelFile, tensor: TensorInfo, layer: string): [string, TensorInfo][] {
  const [experts, rows, columns] = tensor.shape;
  if (tensor.shape.length !== 3 || experts === 0 || (rows as number) % 2 !== 0) {
    throw new CorruptFileError(
      `${file.name}: the tensor ${tensor.name} is [${tensor.shape.join(', ')}]; expected [experts, 2 · inner, hidden]`,
      { data: { tensor: tensor.name, found: tensor.shape } },
    );
  }
  const bytes = tensor.bytes / (2 * (experts as number));
  const shape = [(rows as number) / 2, columns as number];
  return Array.from({ length: 2 * (experts as number) }, (_, half) => [
    `blk.${layer}.ffn_${half % 2 === 0 ? 'gate' : 'up'}.${half >> 1}.weight`,
    { ...tensor, shape, offset: tensor.offset + half * bytes, bytes },
  ]);
}
