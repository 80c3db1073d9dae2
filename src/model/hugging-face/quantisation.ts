/**
 * How a checkpoint's weights are quantised, as `quantization_config` says: by compressed-tensors, by NVIDIA's ModelOpt, or as
 * DeepSeek's FP8. What it says of activations is named and not used: they are as the kernels take them.
 */

import { Refusal } from '../../errors.ts';
import { type JsonValue, showJson } from '../../format/json.ts';
import type { ConfigKeys } from './config-reader.ts';

/** Which tensors of a module make its weight, by the endings of their names, and what they are. */
export type Scheme =
  | {
      readonly kind: 'fp8';
      readonly codes: 'weight';
      readonly scales: string;
      /** How far a scale reaches; absent: over all rows, over all columns. */
      readonly rows?: number;
      readonly columns?: number;
    }
  | {
      readonly kind: 'nvfp4';
      readonly codes: string;
      readonly scales: 'weight_scale';
      readonly tensorScale: string;
      /** Whether values are divided by the scale of the tensor; else multiplied with it. */
      readonly divides: boolean;
    }
  | { readonly kind: 'mxfp4'; readonly codes: 'weight_packed'; readonly scales: 'weight_scale' }
  /** Stacks of experts, as gpt-oss has them: `…_blocks` [experts, rows, columns / 32, 16], `…_scales` [experts, rows, columns / 32]. */
  | { readonly kind: 'mxfp4 stack' };

export interface Quantisation {
  /** How the module of that name is quantised; undefined where it is left out. */
  schemeOf(module: string): Scheme | undefined;
}

/** Endings of tensors that say how to quantise activations or the cache. */
export const activationEndings: ReadonlySet<string> = new Set([
  'input_scale',
  'input_global_scale',
  'output_scale',
  'k_scale',
  'v_scale',
]);
export const ACTIVATIONS = 'says how to quantise activations, which are taken as they are';

const AT = 'quantization_config';
const SOFTWARE = 'concerns the software that wrote the model';
const bookkeeping = [
  'format',
  'global_compression_ratio',
  'quant_library',
  'quantization_status',
  'version',
  'producer',
];

/**
 * Reads `quantization_config`; undefined where there is none.
 * @throws Refusal `refused` for a way of quantising that is not supported
 */
export function readQuantisation(keys: ConfigKeys): Quantisation | undefined {
  if (keys.value(AT) === undefined) {
    keys.take(AT);
    return undefined;
  }
  const method = keys.take(`${AT}.quant_method`);
  for (const name of bookkeeping) keys.ignore(`${AT}.${name}`, SOFTWARE);
  for (const name of ['activation_scheme', 'kv_cache_scheme', 'kv_cache_quant_algo'])
    keys.ignore(`${AT}.${name}`, ACTIVATIONS);
  for (const name of ['sparsity_config', 'transform_config']) only(keys, `${AT}.${name}`, [{}]);
  switch (method) {
    case 'fp8':
      return withLeftOut(keys, ['modules_to_not_convert', 'ignored_layers'], [{ scheme: deepSeekFp8(keys) }]);
    case 'mxfp4':
      return withLeftOut(keys, ['modules_to_not_convert'], [{ scheme: { kind: 'mxfp4 stack' } }]);
    case 'modelopt':
      return withLeftOut(keys, ['ignore', 'exclude_modules'], [{ scheme: modelOpt(keys) }]);
    case 'compressed-tensors':
      return withLeftOut(keys, ['ignore'], groups(keys));
    default:
      throw refusal(keys, `${AT}.quant_method`, ['fp8', 'modelopt', 'compressed-tensors', 'mxfp4']);
  }
}

interface Group {
  readonly scheme: Scheme;
  /** Absent: all that are linear. */
  readonly targets?: readonly string[];
}

function withLeftOut(keys: ConfigKeys, names: readonly string[], all: readonly Group[]): Quantisation {
  const leftOut = names.flatMap((name) => texts(keys, `${AT}.${name}`));
  return {
    schemeOf(module) {
      if (leftOut.some((pattern) => matches(pattern, module))) return undefined;
      return all.find(({ targets }) => targets?.some((target) => matches(target, module)) ?? true)?.scheme;
    },
  };
}

function deepSeekFp8(keys: ConfigKeys): Scheme {
  only(keys, `${AT}.fmt`, ['e4m3']);
  const size = keys.take(`${AT}.weight_block_size`);
  if (size === undefined) return { kind: 'fp8', codes: 'weight', scales: 'weight_scale' };
  return {
    kind: 'fp8',
    codes: 'weight',
    scales: 'weight_scale_inv',
    ...blockOf(keys, `${AT}.weight_block_size`, size),
  };
}

function modelOpt(keys: ConfigKeys): Scheme {
  const algorithm = keys.take(`${AT}.quant_algo`);
  if (algorithm === 'FP8') return { kind: 'fp8', codes: 'weight', scales: 'weight_scale' };
  if (algorithm !== 'NVFP4') throw refusal(keys, `${AT}.quant_algo`, ['NVFP4', 'FP8']);
  only(keys, `${AT}.group_size`, [16]);
  return { kind: 'nvfp4', codes: 'weight', scales: 'weight_scale', tensorScale: 'weight_scale_2', divides: false };
}

/** `config_groups` of compressed-tensors: modules by their targets, and how those are quantised. */
function groups(keys: ConfigKeys): readonly Group[] {
  const value = keys.value(`${AT}.config_groups`);
  if (
    typeof value !== 'object' ||
    Array.isArray(value) ||
    value === undefined ||
    Object.keys(value as object).length === 0
  ) {
    throw keys.corrupt(`${AT}.config_groups`, showJson(value ?? 'missing'), 'an object of groups');
  }
  return Object.keys(value as object).map((name): Group => {
    const at = `${AT}.config_groups.${name}`;
    keys.ignore(`${at}.format`, SOFTWARE);
    for (const part of ['input_activations', 'output_activations']) keys.ignore(`${at}.${part}`, ACTIVATIONS);
    const targets = texts(keys, `${at}.targets`);
    return { scheme: compressed(keys, `${at}.weights`), targets: targets.includes('Linear') ? undefined : targets };
  });
}

function compressed(keys: ConfigKeys, at: string): Scheme {
  for (const name of ['observer', 'observer_kwargs', 'actorder', 'scale_dtype', 'zp_dtype']) {
    keys.ignore(`${at}.${name}`, 'says how the weights were quantised; their tensors show it');
  }
  only(keys, `${at}.symmetric`, [true]);
  only(keys, `${at}.dynamic`, [false]);
  only(keys, `${at}.type`, ['float']);
  const [bits, strategy, size] = ['num_bits', 'strategy', 'group_size'].map((name) => keys.take(`${at}.${name}`));
  const block = keys.take(`${at}.block_structure`);
  if (bits === 8 && strategy === 'channel') return { kind: 'fp8', codes: 'weight', scales: 'weight_scale', rows: 1 };
  if (bits === 8 && strategy === 'tensor') return { kind: 'fp8', codes: 'weight', scales: 'weight_scale' };
  if (bits === 8 && strategy === 'block' && block !== undefined) {
    return { kind: 'fp8', codes: 'weight', scales: 'weight_scale', ...blockOf(keys, `${at}.block_structure`, block) };
  }
  if (bits === 4 && strategy === 'tensor_group' && size === 16) {
    return {
      kind: 'nvfp4',
      codes: 'weight_packed',
      scales: 'weight_scale',
      tensorScale: 'weight_global_scale',
      divides: true,
    };
  }
  if (bits === 4 && strategy === 'group' && size === 32) {
    return { kind: 'mxfp4', codes: 'weight_packed', scales: 'weight_scale' };
  }
  throw new Refusal(
    `${keys.where}: ${at} quantises to ${showJson(bits ?? 'missing')} bits by ${showJson(strategy ?? 'missing')} of ${showJson(size ?? 'any size')}; ` +
      'supported are 8 bits by channel, tensor or block, 4 bits by tensor_group of 16 and by group of 32',
    { data: { key: at } },
  );
}

function blockOf(
  keys: ConfigKeys,
  name: string,
  value: JsonValue,
): { readonly rows: number; readonly columns: number } {
  const [rows, columns] = Array.isArray(value) ? value : [];
  const fits = (size: JsonValue | undefined) => typeof size === 'number' && Number.isInteger(size) && size >= 1;
  if (!Array.isArray(value) || value.length !== 2 || !fits(rows) || !fits(columns) || (columns as number) % 32 !== 0) {
    throw keys.corrupt(name, showJson(value), 'rows and columns, the columns a multiple of 32');
  }
  return { rows: rows as number, columns: columns as number };
}

/** @throws Refusal `refused` for a value that is none of these; absent is the first */
function only(keys: ConfigKeys, name: string, supported: readonly JsonValue[]): void {
  const found = keys.take(name);
  if (found === undefined || supported.some((each) => JSON.stringify(each) === JSON.stringify(found))) return;
  throw refusal(keys, name, supported);
}

function refusal(keys: ConfigKeys, name: string, supported: readonly JsonValue[]): Refusal {
  const found = showJson(keys.value(name) ?? 'missing');
  return new Refusal(
    `${keys.where}: ${name} of config.json is ${found}, which is not supported; supported is ${supported.map(showJson).join(' or ')}`,
    { data: { key: name } },
  );
}

function texts(keys: ConfigKeys, name: string): readonly string[] {
  const value = keys.take(name) ?? [];
  if (Array.isArray(value) && value.every((each) => typeof each === 'string')) return value as readonly string[];
  throw keys.corrupt(name, showJson(value), 'a list of names');
}

/**
 * Whether a pattern names a module, in any of the ways in which writers do: in full, its last parts, what it lies in, with
 * stars, or as an expression behind `re:`.
 */
function matches(pattern: string, module: string): boolean {
  if (pattern.startsWith('re:')) return starsMatch(starsOf(pattern.slice(3)), module);
  if (pattern.includes('*')) return starsMatch(pattern, module);
  return module === pattern || module.startsWith(`${pattern}.`) || module.endsWith(`.${pattern}`);
}

/**
 * The stars that an expression means: `.*` is one, `\.` a dot, `$` the end; without it anything may follow. A file's expression
 * is never run: there are ones that take for ever.
 */
function starsOf(expression: string): string {
  const ends = expression.endsWith('$');
  const body = (ends ? expression.slice(0, -1) : expression)
    .replace(/^\^/, '')
    .replaceAll('.*', '*')
    .replaceAll('\\.', '.');
  return ends ? body : `${body}*`;
}

/** Whether a text fits a pattern in which stars stand for anything: part after part, each as early as it may. */
function starsMatch(pattern: string, text: string): boolean {
  const [first = '', ...rest] = pattern.split('*');
  if (rest.length === 0) return text === first;
  const last = rest.pop() as string;
  if (!text.startsWith(first) || !text.endsWith(last)) return false;
  let at = first.length;
  const end = text.length - last.length;
  for (const part of rest) {
    const found = text.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return at <= end;
}
