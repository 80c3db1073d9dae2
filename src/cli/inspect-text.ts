/** What `conclave inspect` prints for a person: tables of what was read. Everything from the file is made printable first. */

import type { ConclaveError, ErrorData } from '../errors.ts';
import { isJsonObject, type JsonObject, type JsonValue } from '../format/json.ts';
import type { MetadataScalar, MetadataValue, TensorInfo } from '../format/model-file.ts';
import type { Ignored } from '../model/family-reader.ts';
import type { Activation, AttentionSpec, LayerSpec, ModelSpec } from '../model/spec.ts';
import { showRanges, wrap } from '../plan/show.ts';
import { columns, printable, printableName, quoted, showBytes, showCount, showPlural } from './format.ts';

/** Something that could be read, or why not. */
export interface Part<Value> {
  readonly value?: Value;
  readonly fault?: ConclaveError;
}

/** All that `--json` prints. */
export interface Inspection {
  readonly file: string;
  readonly container: string;
  readonly version: number;
  readonly sources: readonly { readonly name: string; readonly bytes: number }[];
  readonly metadata: Readonly<Record<string, MetadataValue>>;
  /** `config.json`, of a safetensors folder. */
  readonly config?: JsonObject;
  readonly tensors: readonly TensorInfo[];
  readonly formats: readonly {
    readonly format: string;
    readonly tensors: number;
    readonly values: number;
    readonly bytes: number;
  }[];
  readonly tokenizer?: object;
  readonly model?: { readonly spec: ModelSpec; readonly ignored: readonly Ignored[] };
  /** Why the file does not run, or what of it could not be read. */
  readonly faults: readonly { readonly code: string; readonly message: string; readonly data: ErrorData }[];
  readonly runs: boolean;
  readonly damaged: boolean;
}

/** Elements of an array that are shown. */
const SHOWN_ELEMENTS = 4;
/** Columns for what is said of a layer, beside its number. */
const LAYER_WIDTH = 80;

export function describeInspection(inspection: Inspection): string {
  const { metadata, tensors, tokenizer, model } = inspection;
  const keys = Object.entries(metadata);
  return [
    ...header(inspection),
    '',
    `metadata: ${showPlural(keys.length, 'key')}`,
    ...indent(columns(keys.map(([key, value]) => [printableName(key), typeOf(value), showValue(value)]))),
    ...(inspection.config === undefined ? [] : configLines(inspection.config)),
    '',
    `tensors: ${showCount(tensors.length)}`,
    ...indent(columns(tensors.map(tensorRow), [3])),
    '',
    'formats',
    ...indent(
      columns(
        inspection.formats.map((total) => [
          printableName(total.format),
          showBytes(total.bytes),
          showPlural(total.tensors, 'tensor'),
          `${((total.bytes * 8) / total.values).toFixed(2)} bits a value`,
        ]),
        [1, 2],
      ),
    ),
    ...(tokenizer === undefined ? [] : ['', 'tokenizer', ...indent(columns(facts(tokenizer)))]),
    ...(model === undefined
      ? []
      : ['', 'model', ...indent(columns(modelRows(model.spec))), ...indent(ignored(model.ignored))]),
    '',
    ...ending(inspection),
    '',
  ].join('\n');
}

function header({ file, container, version, sources, tensors }: Inspection): string[] {
  const bytes = sources.reduce((sum, source) => sum + source.bytes, 0);
  const values = tensors.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0);
  const name = container === 'gguf' ? `GGUF version ${version}` : container;
  const files = sources.length === 1 ? '' : ` in ${showCount(sources.length)} files`;
  return [`${printableName(file)}: ${name}, ${showBytes(bytes)}${files}, ${showCount(values)} values`];
}

function typeOf(value: MetadataValue): string {
  return value.type === 'array' ? `${value.element}[${value.value.length}]` : value.type;
}

function showValue(value: MetadataValue): string {
  if (value.type !== 'array') return showScalar(value.value, 60);
  const shown = Array.from({ length: Math.min(SHOWN_ELEMENTS, value.value.length) }, (_, index) =>
    showScalar(value.value[index]!, 16),
  );
  return `[${shown.join(', ')}${value.value.length > SHOWN_ELEMENTS ? ', …' : ''}]`;
}

function showScalar(value: MetadataScalar, most: number): string {
  if (typeof value === 'string') return quoted(value, most);
  // An f32 has about seven digits; the rest that a double prints is noise.
  return typeof value === 'number' && !Number.isInteger(value) ? `${Number(value.toPrecision(7))}` : `${value}`;
}

function configLines(config: JsonObject): string[] {
  const rows = leavesOf(config, '').map(([name, value]) => [printableName(name), quotedJson(value)]);
  return ['', `config.json: ${showPlural(rows.length, 'key')}`, ...indent(columns(rows))];
}

/** Keys with what stands under them; those of nested objects have a dot. */
function leavesOf(value: JsonObject, path: string): [string, JsonValue][] {
  return Object.entries(value).flatMap(([name, found]): [string, JsonValue][] =>
    isJsonObject(found) ? leavesOf(found, `${path}${name}.`) : [[`${path}${name}`, found]],
  );
}

function quotedJson(value: JsonValue): string {
  if (typeof value === 'string') return quoted(value, 60);
  const text = printable(JSON.stringify(value));
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

function tensorRow({ name, format, shape, bytes }: TensorInfo): string[] {
  return [printableName(name), printableName(format), `[${shape.join(', ')}]`, showBytes(bytes)];
}

/** Plain data as rows; long texts and lists are cut. */
function facts(data: object): string[][] {
  return Object.entries(data).map(([name, value]) => [words(name), showFact(value)]);
}

function showFact(value: unknown): string {
  if (typeof value === 'string') return quoted(value, 60);
  if (typeof value === 'number') return Number.isInteger(value) ? showCount(value) : `${value}`;
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (Array.isArray(value)) {
    const more = value.length > 8 ? `, … (${showCount(value.length)})` : '';
    return `${value.slice(0, 8).map(showFact).join(', ')}${more}` || 'none';
  }
  if (typeof value === 'object' && value !== null) {
    // A token by its id and text.
    if ('id' in value && 'text' in value) return `${value.id} ${quoted(`${value.text}`, 24)}`;
    return Object.entries(value)
      .map(([name, each]) => `${words(name)} ${showFact(each)}`)
      .join(', ');
  }
  return value === undefined || value === null ? 'none' : `${value}`;
}

/** `endOfGeneration` as `end of generation`. */
function words(name: string): string {
  return printable(name.replace(/[A-Z]/g, (capital) => ` ${capital.toLowerCase()}`));
}

function modelRows(spec: ModelSpec): string[][] {
  const rows = [
    ['architecture', spec.architecture],
    ['vocabulary', showCount(spec.vocabulary)],
    ['hidden', showCount(spec.hidden)],
    ['trained context', showPlural(spec.trainedContext, 'token')],
    ['head', head(spec)],
    ...factors(spec),
  ];
  const alike = new Map<string, { readonly layer: LayerSpec; readonly numbers: number[] }>();
  spec.layers.forEach((layer, index) => {
    const key = JSON.stringify(layer);
    const group = alike.get(key);
    if (group === undefined) alike.set(key, { layer, numbers: [index] });
    else group.numbers.push(index);
  });
  for (const { layer, numbers } of alike.values()) {
    const title = `${numbers.length === 1 ? 'layer' : 'layers'} ${showRanges(numbers)}`;
    const lines = [attention(layer), feedForward(layer)].flatMap((text) => wrap(text, LAYER_WIDTH));
    for (const [index, line] of lines.entries()) rows.push([index === 0 ? title : '', line]);
  }
  return rows;
}

/** What is multiplied with a number of the model's, if anything is. */
function factors({ embedding, residualScale, head }: ModelSpec): string[][] {
  const all = [
    ...(embedding === undefined ? [] : [`embedding ${showFactor(embedding.scale)}`]),
    ...(residualScale === undefined ? [] : [`what layers add ${showFactor(residualScale)}`]),
    ...(head.logitScale === undefined ? [] : [`logits ${showFactor(head.logitScale)}`]),
  ];
  return all.length === 0 ? [] : [['factors', all.join(', ')]];
}

function showFactor(factor: number): string {
  return `× ${Number(factor.toPrecision(6))}`;
}

function head({ head: { tied, softcap } }: ModelSpec): string {
  const weight = tied ? 'the embedding again' : 'its own weight';
  return softcap === undefined ? weight : `${weight}, logits capped at ${softcap}`;
}

function attention({ attention: spec }: LayerSpec): string {
  const { rope, qkNorm, reach, gate } = spec;
  return [
    ...headsOf(spec),
    ...(rope === undefined
      ? ['no rotation']
      : [
          `rope ${rope.dimensions} ${rope.pairing}, base ${rope.base}${rope.scaling.kind === 'none' ? '' : `, ${rope.scaling.kind} scaling`}`,
        ]),
    ...(qkNorm === undefined ? [] : [`query and key norm over ${qkNorm.over === 'head' ? 'each head' : 'all heads'}`]),
    ...(reach === undefined
      ? []
      : [`${reach.kind === 'window' ? 'a window' : 'chunks'} of ${showPlural(reach.length, 'position')}`]),
    ...(spec.sinks ? ['sinks'] : []),
    ...(spec.temperature === undefined ? [] : ['a temperature by position']),
    ...(gate === undefined ? [] : [`a ${gate.activation} gate for each ${gate.per}`]),
  ].join(', ');
}

function headsOf({ heads, kvHeads, headDim, valueDim, latent }: AttentionSpec): string[] {
  const of = (key: number, value: number) =>
    `${showPlural(heads, 'head')} of ${key}${value === key ? '' : ` (values of ${value})`}`;
  if (latent === undefined) return [`${of(headDim, valueDim)} over ${showPlural(kvHeads, 'key/value head')}`];
  const rotated = headDim - valueDim;
  return [
    `${of(latent.plainDim + rotated, latent.headValueDim)} over a latent of ${valueDim} and ${rotated} rotated beside it`,
    ...(latent.queryRank === undefined ? [] : [`queries through a rank of ${latent.queryRank}`]),
  ];
}

function feedForward({ feedForward: spec }: LayerSpec): string {
  if (spec.kind === 'dense') return `dense, ${showCount(spec.inner)} wide, ${activationName(spec.activation)}`;
  const { experts, used, inner, router, shared, activation, biases, scaled } = spec.moe;
  return [
    `${experts} experts of ${showCount(inner)}, ${used} used, ${activationName(activation)}`,
    ...(biases ? ['with biases'] : []),
    `${router.gating} router${router.selectionBias ? ' with selection bias' : ''}${router.weighsInput ? ' that weighs inputs' : ''}`,
    ...(router.groups === undefined ? [] : [`${router.groups.used} of ${router.groups.count} groups`]),
    ...(router.normalise ? ['normalised'] : []),
    ...(router.scale === 1 ? [] : [`scaled by ${router.scale}`]),
    ...(router.expertScale ? ['scales of experts'] : []),
    ...(scaled === true ? ['a scale for each matrix'] : []),
    ...(shared === undefined ? [] : [`shared expert of ${showCount(shared.inner)}${shared.gated ? ', gated' : ''}`]),
    ...(spec.beside === undefined ? [] : [`a dense block of ${showCount(spec.beside.inner)} beside them`]),
  ].join(', ');
}

function activationName(activation: Activation): string {
  return typeof activation === 'object' ? activation.kind : activation;
}

function ignored(entries: readonly Ignored[]): string[] {
  if (entries.length === 0) return [];
  const reasons = new Map<string, string[]>();
  for (const { name, reason } of entries) reasons.set(reason, [...(reasons.get(reason) ?? []), name]);
  return [...reasons].flatMap(([reason, names]) => {
    const more = names.length > 3 ? ` and ${showCount(names.length - 3)} more` : '';
    return wrap(printable(`ignored: ${names.slice(0, 3).join(', ')}${more}: ${reason}`), 96);
  });
}

function ending({ faults, runs }: Inspection): string[] {
  if (runs) return ['Conclave can run it.'];
  const [first, ...more] = faults.map(({ code, message }) => `${code}: ${printable(message)}`);
  return [`Conclave cannot run it here. ${first ?? ''}`, ...more.map((message) => `Also: ${message}`)];
}

function indent(lines: readonly string[]): string[] {
  return lines.map((line) => `  ${line}`);
}
