/**
 * A family's view of a model file: metadata under the architecture's prefix and tensors, each typed, checked and
 * consumed as it is read. Names are GGUF's, whatever the container; messages have the file's own. What nobody consumed or
 * named as ignored is left over, and `read-model.ts` refuses it.
 */

import { CorruptFileError, InternalError } from '../errors.ts';
import type { MetadataScalar, MetadataValue, ModelFile, TensorInfo } from '../format/model-file.ts';
import type { WeightName } from './graph.ts';
import { ggufSpelling, type Spelling } from './spelling.ts';
import type { Weight, Weights } from './weights.ts';

/** Bounds of a whole number. Without `default` the key must be there. */
export interface CountBounds {
  readonly min: number;
  readonly max: number;
  readonly default?: number;
}

/** A key or tensor that is understood and deliberately not used. */
export interface Ignored {
  readonly name: string;
  readonly reason: string;
}

/** No count of a model that exists comes near it; products of two stay exact numbers. */
export const MOST = 2 ** 26;

export class FamilyReader {
  readonly file: ModelFile;
  readonly architecture: string;
  /** Whether what predicts further ahead is to be claimed, where the family reads it. */
  readonly mtp: boolean;
  readonly spelling: Spelling;
  readonly #keysRead = new Set<string>();
  readonly #tensorsClaimed = new Set<string>();
  readonly #weights = new Map<WeightName, Weight>();
  readonly #ignored: Ignored[] = [];

  constructor(
    file: ModelFile,
    architecture: string,
    {
      spelling = ggufSpelling(architecture),
      mtp = false,
    }: { readonly spelling?: Spelling; readonly mtp?: boolean } = {},
  ) {
    this.file = file;
    this.architecture = architecture;
    this.spelling = spelling;
    this.mtp = mtp;
  }

  /** The key as the file spells it: `block_count` → `llama.block_count`, or `num_hidden_layers`. */
  fullKey(key: string): string {
    return this.spelling.key(this.#nameOf(key));
  }

  /** The tensor as the file spells it: `blk.0.attn_q.weight`, or `model.layers.0.self_attn.q_proj.weight`. */
  fullTensor(tensorName: string): string {
    return this.spelling.tensor(tensorName);
  }

  /** Whether the file has the key; does not consume it. */
  has(key: string): boolean {
    return this.file.metadata.has(this.#nameOf(key));
  }

  /**
   * A whole number within bounds.
   * @throws CorruptFileError `corrupt_file` naming the full key.
   */
  count(key: string, bounds: CountBounds): number {
    const found = this.#take(key);
    if (found === undefined) {
      if (bounds.default !== undefined) return bounds.default;
      throw this.#missingKey(key, `a whole number from ${bounds.min} to ${bounds.max}`);
    }
    if (found.type === 'array') throw this.corruptKey(key, `an array of ${found.value.length}`, 'one whole number');
    return this.#checkCount(key, found.value, bounds);
  }

  /**
   * A whole number a layer: the file has one for all, or an array with one for each.
   * @throws CorruptFileError `corrupt_file` naming the full key.
   */
  counts(key: string, layers: number, bounds: CountBounds): readonly number[] {
    const found = this.file.metadata.get(this.#nameOf(key));
    if (found?.type !== 'array') return new Array<number>(layers).fill(this.count(key, bounds));
    this.#keysRead.add(this.#nameOf(key));
    if (found.value.length !== layers) {
      throw this.corruptKey(
        key,
        `an array of ${found.value.length}`,
        `one number, or one for each of the ${layers} layers`,
      );
    }
    return Array.from(found.value, (value, layer) => this.#checkCount(key, value, bounds, layer));
  }

  /**
   * A finite number.
   * @throws CorruptFileError `corrupt_file` naming the full key.
   */
  float(key: string, options: { readonly default?: number } = {}): number {
    return this.#number(key, 'a finite number', () => true, options.default);
  }

  /**
   * A finite number above 0.
   * @throws CorruptFileError `corrupt_file` naming the full key.
   */
  positiveFloat(key: string, options: { readonly default?: number } = {}): number {
    return this.#number(key, 'a finite number above 0', (value) => value > 0, options.default);
  }

  /** @throws CorruptFileError `corrupt_file` naming the full key. */
  flag(key: string, options: { readonly default?: boolean } = {}): boolean {
    const found = this.#take(key);
    if (found === undefined) {
      if (options.default !== undefined) return options.default;
      throw this.#missingKey(key, 'true or false');
    }
    if (found.type !== 'bool') throw this.corruptKey(key, describe(found), 'true or false');
    return found.value as boolean;
  }

  /** Whether the key has an array; does not consume it. */
  isArray(key: string): boolean {
    return this.file.metadata.get(this.#nameOf(key))?.type === 'array';
  }

  /**
   * True or false for each layer, or words that mean as much.
   * @throws CorruptFileError `corrupt_file` naming the full key.
   */
  flags(key: string, layers: number, words: Readonly<Record<string, boolean>> = {}): readonly boolean[] {
    const found = this.#take(key);
    const either = ['true or false', ...Object.keys(words)].join(' or ');
    const expected = `${either} for each of the ${layers} layers`;
    if (found === undefined) throw this.#missingKey(key, expected);
    const values = found.type === 'array' && found.value.length === layers ? Array.from(found.value) : [];
    const flags = values.flatMap((value) => (typeof value === 'boolean' ? value : (words[String(value)] ?? [])));
    if (flags.length !== layers) throw this.corruptKey(key, describe(found), expected);
    return flags;
  }

  /** @throws CorruptFileError `corrupt_file` naming the full key. */
  text(key: string, options: { readonly default?: string } = {}): string {
    const found = this.#take(key);
    if (found === undefined) {
      if (options.default !== undefined) return options.default;
      throw this.#missingKey(key, 'a text');
    }
    if (found.type !== 'string') throw this.corruptKey(key, describe(found), 'a text');
    return found.value as string;
  }

  /**
   * What `config.json` says under a name that GGUF has no key for; undefined where it says nothing, and for GGUF.
   * @throws CorruptFileError `corrupt_file` naming the key
   */
  configFlag(name: string): boolean | undefined {
    return this.#hasConfig(name) ? this.flag(`config.${name}`) : undefined;
  }

  /** The same for a finite number above 0. */
  configNumber(name: string): number | undefined {
    return this.#hasConfig(name) ? this.positiveFloat(`config.${name}`) : undefined;
  }

  /** Consumes a key, where the file has it, that is understood and changes nothing. */
  ignoreKey(key: string, reason: string): void {
    if (this.#take(key) !== undefined) this.#ignored.push({ name: this.fullKey(key), reason });
  }

  /** Whether the file has the tensor; does not claim it. */
  hasTensor(tensorName: string): boolean {
    return this.file.tensors.has(tensorName);
  }

  /** The tensor's shape as the file gives it; does not claim it. */
  shapeOf(tensorName: string): readonly number[] | undefined {
    return this.file.tensors.get(tensorName)?.shape;
  }

  /**
   * Claims a tensor as a weight of the given shape.
   * @throws CorruptFileError `corrupt_file` naming the tensor when it is missing or of another shape.
   */
  weight(name: WeightName, tensorName: string, shape: readonly number[]): void {
    this.#bind(name, [this.#claim(tensorName, shape)], shape);
  }

  /**
   * Claims a tensor of the given shape as one vector, row after row: numbers that are added or multiplied, never a matrix.
   * @throws CorruptFileError `corrupt_file` naming the tensor when it is missing or of another shape.
   */
  vector(name: WeightName, tensorName: string, shape: readonly number[]): void {
    this.#bind(name, [this.#claim(tensorName, shape)], [shape.reduce((product, size) => product * size, 1)]);
  }

  /**
   * Claims a stack of matrices [count, 2 · rows, columns] as two stacks of `shape` [count, rows, columns]: of each matrix
   * the upper half goes to the first name, the lower to the second.
   * @throws CorruptFileError `corrupt_file` naming the tensor when it is missing or of another shape.
   */
  halves(names: readonly [WeightName, WeightName], tensorName: string, shape: readonly [number, number, number]): void {
    const [count, rows, columns] = shape;
    const whole = this.#claim(tensorName, [count, 2 * rows, columns]);
    const bytes = whole.bytes / (2 * count);
    names.forEach((name, half) => {
      const parts = Array.from({ length: count }, (_, index): TensorInfo => {
        const offset = whole.offset + (2 * index + half) * bytes;
        return { ...whole, shape: [rows, columns], offset, bytes };
      });
      this.#bind(name, parts, shape);
    });
  }

  /** As {@link weight}, where the file has the tensor; returns whether it has. */
  optional(name: WeightName, tensorName: string, shape: readonly number[]): boolean {
    if (!this.hasTensor(tensorName)) return false;
    this.weight(name, tensorName, shape);
    return true;
  }

  /**
   * Claims several tensors, each of `shape` without its outermost axis, as one weight stacked along that axis.
   * @throws CorruptFileError `corrupt_file` naming the tensor that is missing, or of another shape or format.
   */
  stacked(name: WeightName, tensorNames: readonly string[], shape: readonly number[]): void {
    const parts = tensorNames.map((tensorName) => this.#claim(tensorName, shape.slice(1)));
    const format = parts[0]?.format;
    const odd = parts.find((part) => part.format !== format);
    if (odd !== undefined) {
      throw new CorruptFileError(
        `${this.file.name}: ${odd.name} is ${odd.format}, but ${parts[0]?.name} of the same stack is ${format}; ` +
          'the experts of a layer must share one format',
        { data: { tensor: odd.name } },
      );
    }
    this.#bind(name, parts, shape);
  }

  /**
   * Claims a matrix of one row as a vector.
   * @throws CorruptFileError `corrupt_file` as {@link weight}
   */
  row(name: WeightName, tensorName: string, length: number): void {
    this.#bind(name, [this.#claim(tensorName, [1, length])], [length]);
  }

  /** Claims a tensor, where the file has it, that is understood and not used. */
  ignoreTensor(tensorName: string, reason: string): void {
    if (!this.hasTensor(tensorName) || this.#tensorsClaimed.has(tensorName)) return;
    this.#tensorsClaimed.add(tensorName);
    this.#ignored.push({ name: this.fullTensor(tensorName), reason });
  }

  /** The error for a key whose value does not do; for checks that a family makes itself. */
  corruptKey(key: string, found: string, expected: string): CorruptFileError {
    return new CorruptFileError(
      `${this.file.name}: ${this.fullKey(key)} is ${found}; expected ${expected}; the file is damaged or was written wrongly`,
      { data: { key: this.fullKey(key) } },
    );
  }

  /** What was claimed, and what is left, as the file spells it: keys under the prefix and tensors that nobody consumed. */
  finish(): {
    readonly weights: Weights;
    readonly ignored: readonly Ignored[];
    readonly unreadKeys: readonly string[];
    readonly unclaimedTensors: readonly string[];
  } {
    const prefix = `${this.architecture}.`;
    return {
      weights: this.#weights,
      ignored: this.#ignored,
      unreadKeys: unique(
        [...this.file.metadata.keys()]
          .filter((key) => key.startsWith(prefix) && !this.#keysRead.has(key))
          .map((key) => this.spelling.key(key)),
        [...this.#keysRead].map((key) => this.spelling.key(key)),
      ),
      unclaimedTensors: unique(
        [...this.file.tensors.keys()]
          .filter((name) => !this.#tensorsClaimed.has(name))
          .map((name) => this.spelling.tensor(name)),
      ),
    };
  }

  #nameOf(key: string): string {
    return `${this.architecture}.${key}`;
  }

  #hasConfig(name: string): boolean {
    return this.file.container === 'safetensors' && this.has(`config.${name}`);
  }

  #take(key: string): MetadataValue | undefined {
    const name = this.#nameOf(key);
    const found = this.file.metadata.get(name);
    if (found !== undefined) this.#keysRead.add(name);
    return found;
  }

  #missingKey(key: string, expected: string): CorruptFileError {
    return new CorruptFileError(
      `${this.file.name}: ${this.fullKey(key)} is missing; expected ${expected}; the ${this.architecture} architecture needs it`,
      { data: { key: this.fullKey(key) } },
    );
  }

  #checkCount(key: string, value: MetadataScalar, { min, max }: CountBounds, layer?: number): number {
    if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max) {
      const where = layer === undefined ? '' : ` for layer ${layer}`;
      throw this.corruptKey(key, `${showScalar(value)}${where}`, `a whole number from ${min} to ${max}`);
    }
    return value;
  }

  #number(key: string, expected: string, fits: (value: number) => boolean, fallback: number | undefined): number {
    const found = this.#take(key);
    if (found === undefined) {
      if (fallback !== undefined) return fallback;
      throw this.#missingKey(key, expected);
    }
    if (
      found.type === 'array' ||
      typeof found.value !== 'number' ||
      !Number.isFinite(found.value) ||
      !fits(found.value)
    ) {
      throw this.corruptKey(key, describe(found), expected);
    }
    return found.value;
  }

  #claim(tensorName: string, shape: readonly number[]): TensorInfo {
    const tensor = this.file.tensors.get(tensorName);
    if (tensor === undefined) {
      throw new CorruptFileError(
        `${this.file.name}: the tensor ${this.fullTensor(tensorName)} is missing; expected [${shape.join(', ')}]; ` +
          'the file is incomplete or its metadata is wrong',
        { data: { tensor: this.fullTensor(tensorName) } },
      );
    }
    if (tensor.shape.length !== shape.length || tensor.shape.some((size, axis) => size !== shape[axis])) {
      throw new CorruptFileError(
        `${this.file.name}: the tensor ${tensor.name} is [${tensor.shape.join(', ')}]; ` +
          `${this.spelling.sizes} says [${shape.join(', ')}] (rows first)`,
        { data: { tensor: tensor.name, found: tensor.shape, expected: shape } },
      );
    }
    if (this.#tensorsClaimed.has(tensorName)) throw new InternalError(`the tensor ${tensorName} was claimed twice`);
    this.#tensorsClaimed.add(tensorName);
    return tensor;
  }

  #bind(name: WeightName, parts: readonly TensorInfo[], shape: readonly number[]): void {
    if (this.#weights.has(name)) throw new InternalError(`the weight ${name} was bound twice`);
    const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
    const weight = { name, format: (parts[0] as TensorInfo).format, shape, parts, bytes };
    this.#weights.set(name, parts.some(({ gathered }) => gathered) ? { ...weight, gathered: true } : weight);
  }
}

/** Names, each once: a file's tensor or key may stand for several. Without those of `others`. */
function unique(names: readonly string[], others: readonly string[] = []): readonly string[] {
  const without = new Set(others);
  return [...new Set(names)].filter((name) => !without.has(name));
}

function describe(value: MetadataValue): string {
  if (value.type === 'array') return `an array of ${value.value.length} (${value.element})`;
  return `${showScalar(value.value)} (${value.type})`;
}

function showScalar(value: MetadataScalar): string {
  return typeof value === 'string' ? JSON.stringify(value.slice(0, 60)) : String(value);
}
