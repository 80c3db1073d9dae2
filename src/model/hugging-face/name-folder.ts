/** A safetensors model and the files beside it, under GGUF's names, so that one family reads both containers. */

import { CorruptFileError, Refusal } from '../../errors.ts';
import { isJsonObject, type JsonObject } from '../../format/json.ts';
import type { ModelFile } from '../../format/model-file.ts';
import type { ModelFolder } from '../../format/model-folder.ts';
import { families } from '../families/index.ts';
import type { Family } from '../family.ts';
import type { NamedModel } from '../named-model.ts';
import { nameKeys } from './config-keys.ts';
import { ConfigKeys } from './config-reader.ts';
import type { Dialect } from './dialect.ts';
import { nameTensors } from './name-tensors.ts';
import { tensorNames } from './tensor-names.ts';

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
  const config = withQuantConfig(folder.config, folder);
  const { family, dialect } = familyOf(config, folder.name);
  const keys = nameKeys(config, family.architecture, dialect, folder.name);
  const names = tensorNames(dialect);
  const { tensors, sources, ignored } = nameTensors(file, names, keys.quantisation);
  return {
    family,
    file: { ...file, name: folder.name, metadata: keys.metadata, tensors, sources },
    spelling: {
      key: (name) => keys.names.get(name) ?? name,
      tensor: (name) => tensors.get(name)?.name ?? names.own(name),
      sizes: 'config.json',
      layers: 'model.layers.N.…',
    },
    ignored: [...keys.ignored, ...ignored],
    unknownKeys: keys.unknown,
    has: (name) => file.tensors.has(name) || new ConfigKeys(config, '', folder.name).value(name) !== undefined,
  };
}

/** Where `config.json` does not say how weights are quantised, `hf_quant_config.json` may, in ModelOpt's words. */
function withQuantConfig(config: JsonObject, { quantConfig }: ModelFolder): JsonObject {
  const said = quantConfig?.quantization;
  if ((config.quantization_config ?? undefined) !== undefined || !isJsonObject(said)) return config;
  return { ...config, quantization_config: { quant_method: 'modelopt', ...said } };
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
