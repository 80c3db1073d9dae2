/** Takes values out of `config.json` and puts them under GGUF's keys, and knows what was taken and what is left. */

import { CorruptFileError } from '../../errors.ts';
import { type JsonObject, type JsonValue, showJson } from '../../format/json.ts';
import type { MetadataType, MetadataValue } from '../../format/model-file.ts';
import type { Ignored } from '../family-reader.ts';

export interface NamedKeys {
  /** By GGUF's full key. */
  readonly metadata: ReadonlyMap<string, MetadataValue>;
  /** GGUF's full key → what `config.json` calls it. */
  readonly names: ReadonlyMap<string, string>;
  readonly ignored: readonly Ignored[];
  /** Keys that nobody knows. */
  readonly unknown: readonly string[];
}

/** Names of nested keys have a dot: `rope_parameters.factor`. */
export class ConfigKeys {
  readonly where: string;
  readonly #config: JsonObject;
  readonly #prefix: string;
  readonly #metadata = new Map<string, MetadataValue>();
  readonly #names = new Map<string, string>();
  readonly #taken = new Set<string>();
  readonly #ignored: Ignored[] = [];

  constructor(config: JsonObject, architecture: string, where: string) {
    this.where = where;
    this.#config = config;
    this.#prefix = `${architecture}.`;
  }

  /** What stands under a name; undefined where nothing or null does. Does not take it. */
  value(name: string): JsonValue | undefined {
    let found: JsonValue | undefined = this.#config;
    for (const part of name.split('.')) {
      if (typeof found !== 'object' || found === null || Array.isArray(found)) return undefined;
      found = Object.hasOwn(found, part) ? (found as JsonObject)[part] : undefined;
    }
    return found ?? undefined;
  }

  /** The same, and takes it. */
  take(name: string): JsonValue | undefined {
    this.#taken.add(name);
    return this.value(name);
  }

  ignore(name: string, reason: string): void {
    if (this.take(name) !== undefined) this.#ignored.push({ name, reason });
  }

  /**
   * Puts what stands under one of the names, which all mean the same, under GGUF's key.
   * @throws CorruptFileError `corrupt_file` where two of them say different things, and for what is no plain value
   */
  add(key: string, spelled: readonly string[]): void {
    const [first, ...others] = spelled.filter((name) => this.take(name) !== undefined);
    // For messages about what is missing.
    this.#names.set(`${this.#prefix}${key}`, first ?? spelled.join(' or '));
    if (first === undefined) return;
    const value = this.value(first) as JsonValue;
    for (const other of others) {
      const found = this.value(other) as JsonValue;
      if (JSON.stringify(found) !== JSON.stringify(value)) {
        throw this.corrupt(other, showJson(found), `${first}, which means the same and is ${showJson(value)}`);
      }
    }
    this.set(key, value, first);
  }

  /** Puts a value under GGUF's key. @throws CorruptFileError `corrupt_file` for what is no plain value */
  set(key: string, value: JsonValue, name: string): void {
    const metadata = metadataOf(value);
    if (metadata === undefined) throw this.corrupt(name, showJson(value), 'a plain value');
    this.#metadata.set(`${this.#prefix}${key}`, metadata);
    this.#names.set(`${this.#prefix}${key}`, name);
  }

  corrupt(name: string, found: string, expected: string): CorruptFileError {
    return new CorruptFileError(
      `${this.where}: ${name} of config.json is ${found}; expected ${expected}; the file is damaged or was written wrongly`,
      { data: { key: name } },
    );
  }

  finish(): NamedKeys {
    return {
      metadata: this.#metadata,
      names: this.#names,
      ignored: this.#ignored,
      unknown: this.#unknown(this.#config, ''),
    };
  }

  #unknown(value: JsonObject, path: string): string[] {
    return Object.entries(value).flatMap(([name, found]) => {
      const full = `${path}${name}`;
      if (this.#taken.has(full)) return [];
      const nested = typeof found === 'object' && found !== null && !Array.isArray(found);
      // Of an object of which something is known, what is not known; else the object.
      const partly = nested && [...this.#taken].some((taken) => taken.startsWith(`${full}.`));
      return partly ? this.#unknown(found as JsonObject, `${full}.`) : [full];
    });
  }
}

/** A plain value as GGUF's metadata has it; undefined for objects and for lists of several kinds. */
function metadataOf(value: JsonValue): MetadataValue | undefined {
  const type = typeOf(value);
  if (type !== undefined) return { type, value: value as string | number | boolean };
  if (!Array.isArray(value)) return undefined;
  const element = value.length === 0 ? 'i64' : typeOf(value[0]);
  if (element === undefined || value.some((each) => typeof each !== typeof value[0])) return undefined;
  return { type: 'array', element, value };
}

function typeOf(value: JsonValue): MetadataType | undefined {
  if (typeof value === 'number') return Number.isInteger(value) ? 'i64' : 'f64';
  if (typeof value === 'boolean') return 'bool';
  return typeof value === 'string' ? 'string' : undefined;
}
