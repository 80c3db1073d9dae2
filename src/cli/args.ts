/**
 * Turns an argument list into typed values by a table of flags, and the table into help. Knows nothing of any command.
 * Every complaint names the flag, what was found and what was expected.
 */

import { parseArgs } from 'node:util';
import { UsageError } from '../errors.ts';
import { parseBytes } from '../format/byte-size.ts';
import { wrap } from '../plan/show.ts';

/** Columns of help. */
const WIDTH = 100;

interface FlagBase {
  readonly short?: string;
  /** Other long names that are understood. */
  readonly aliases?: readonly string[];
  /** What help says; one line. */
  readonly about: string;
  /** Left out of help. */
  readonly hidden?: boolean;
}

/** What a flag is called in help (`N`, `FILE`) and what it takes. */
export type FlagSpec = FlagBase &
  (
    | { readonly kind: 'switch' }
    | { readonly kind: 'text'; readonly value: string }
    /** May be given several times. */
    | { readonly kind: 'list'; readonly value: string }
    | { readonly kind: 'choice'; readonly choices: readonly string[] }
    | { readonly kind: 'whole' | 'number'; readonly value: string; readonly min?: number; readonly max?: number }
    /** A text of a certain form; `expected` says which, and `examples` are of it. */
    | {
        readonly kind: 'form';
        readonly value: string;
        readonly form: RegExp;
        readonly expected: string;
        readonly examples: readonly string[];
      }
    /** A size in bytes: `268435456`, `256MiB`, `4GB`. */
    | { readonly kind: 'bytes'; readonly value: string; readonly min: number }
    /** A JSON object. */
    | { readonly kind: 'json'; readonly value: string }
  );

/** By long name without the dashes. */
export type FlagTable = Readonly<Record<string, FlagSpec>>;

type FlagValue<Spec> = Spec extends { kind: 'switch' }
  ? boolean
  : Spec extends { kind: 'list' }
    ? readonly string[]
    : Spec extends { kind: 'choice'; choices: readonly (infer Choice)[] }
      ? Choice
      : Spec extends { kind: 'whole' | 'number' | 'bytes' }
        ? number
        : Spec extends { kind: 'json' }
          ? Readonly<Record<string, unknown>>
          : string;

export interface ParsedArguments<Table extends FlagTable> {
  readonly values: { readonly [Name in keyof Table]?: FlagValue<Table[Name]> };
  readonly positionals: readonly string[];
}

/**
 * Reads `argv` by `table`. `--` ends the flags; values may start with a dash (`-n -1`) unless they are a flag of the table.
 * @throws UsageError `usage` for an unknown flag (with the nearest known one), a missing value or a bad value.
 */
export function parseFlags<const Table extends FlagTable>(
  table: Table,
  argv: readonly string[],
): ParsedArguments<Table> {
  const names = spellings(table);
  const options: Record<string, { type: 'boolean' | 'string'; short?: string; multiple?: boolean }> = {};
  for (const [name, spec] of Object.entries(table)) {
    const type = spec.kind === 'switch' ? 'boolean' : 'string';
    options[name] = spec.short === undefined ? { type } : { type, short: spec.short };
    for (const alias of spec.aliases ?? []) options[alias] = { type };
  }
  // Not strict: then a value may start with a dash, and what is unknown is told in our own words.
  const { tokens } = parseArgs({ args: [...argv], options, strict: false, allowPositionals: true, tokens: true });

  const values: Record<string, unknown> = {};
  const positionals: string[] = [];
  for (const token of tokens) {
    if (token.kind === 'positional') positionals.push(token.value);
    if (token.kind !== 'option') continue;
    const name = names.get(`--${token.name}`) ?? names.get(`-${token.name}`);
    if (name === undefined) throw unknownFlag(token.rawName, argv[token.index] ?? '', names);
    const spec = table[name] as FlagSpec;
    const said = spelling(name, spec);
    if (spec.kind === 'switch') {
      if (token.value !== undefined)
        throw new UsageError(`${said} takes no value, found ${JSON.stringify(token.value)}`);
      values[name] = true;
      continue;
    }
    // `-p -n 5`: the prompt was forgotten; `-p=-n` or `--prompt=-n` would be meant.
    if (token.value === undefined || (!token.inlineValue && names.has(token.value))) {
      const found = token.value === undefined ? '' : `, found the flag ${token.value}`;
      throw new UsageError(`${said} needs ${expectation(spec)}${found}`);
    }
    const value = readValue(spec, token.value);
    if (value === undefined) throw badValue({ name, spec, found: token.value, raw: argv[token.index] ?? '', names });
    if (spec.kind === 'list') values[name] = [...((values[name] as string[] | undefined) ?? []), value];
    else values[name] = value;
  }
  return { values: values as ParsedArguments<Table>['values'], positionals };
}

/** Every way to write a flag, dashes included → its name in the table. */
function spellings(table: FlagTable): Map<string, string> {
  const names = new Map<string, string>();
  for (const [name, spec] of Object.entries(table)) {
    names.set(`--${name}`, name);
    if (spec.short !== undefined) names.set(`-${spec.short}`, name);
    for (const alias of spec.aliases ?? []) names.set(`--${alias}`, name);
  }
  return names;
}

/** As errors call a flag: `-n/--predict`. */
function spelling(name: string, spec: FlagSpec): string {
  return spec.short === undefined ? `--${name}` : `-${spec.short}/--${name}`;
}

function unknownFlag(flag: string, raw: string, names: ReadonlyMap<string, string>): UsageError {
  // `-json` reads as `-j -s …`: one dash where two were meant.
  const oneDash = names.has(`-${raw}`);
  const near = oneDash
    ? `-${raw}`
    : nearest(
        flag,
        [...names.keys()].filter((known) => known.startsWith('--')),
      );
  return new UsageError(
    `unknown flag ${oneDash ? raw : flag}${near === undefined ? '; --help lists all of them' : `; did you mean ${near}?`}`,
  );
}

function badValue(bad: {
  readonly name: string;
  readonly spec: FlagSpec;
  readonly found: string;
  readonly raw: string;
  readonly names: ReadonlyMap<string, string>;
}): UsageError {
  const message = `${spelling(bad.name, bad.spec)} expects ${expectation(bad.spec)}, found ${JSON.stringify(bad.found)}`;
  // `-temp 0` reads as `-t emp`: one dash where two were meant.
  const long = bad.names.has(`-${bad.raw}`) ? `; did you mean -${bad.raw}?` : '';
  return new UsageError(message + long);
}

/** The value, or undefined when it is not what the flag takes. */
function readValue(spec: FlagSpec, text: string): unknown {
  switch (spec.kind) {
    case 'choice':
      return spec.choices.includes(text) ? text : undefined;
    case 'form':
      return spec.form.test(text) ? text : undefined;
    case 'whole':
    case 'number': {
      if (!(spec.kind === 'whole' ? /^[+-]?\d+$/ : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i).test(text))
        return undefined;
      const value = Number(text);
      if (spec.kind === 'whole' && !Number.isSafeInteger(value)) return undefined;
      if (!Number.isFinite(value) || value < (spec.min ?? -Infinity) || value > (spec.max ?? Infinity))
        return undefined;
      return value;
    }
    case 'bytes': {
      const value = parseBytes(text);
      return value !== undefined && value >= spec.min ? value : undefined;
    }
    case 'json':
      try {
        const value: unknown = JSON.parse(text);
        return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : undefined;
      } catch {
        return undefined;
      }
    default:
      return text;
  }
}

/** What a flag takes, as a phrase. */
function expectation(spec: FlagSpec): string {
  switch (spec.kind) {
    case 'choice':
      return `one of ${spec.choices.join(', ')}`;
    case 'form':
      return spec.expected;
    case 'whole':
    case 'number': {
      const what = spec.kind === 'whole' ? 'a whole number' : 'a number';
      const { min, max } = spec;
      if (min !== undefined && max !== undefined) return `${what} from ${min} to ${max}`;
      return min === undefined ? what : `${what} of at least ${min}`;
    }
    case 'bytes':
      return `a size of at least ${spec.min} bytes such as 256MiB or 4GB`;
    case 'json':
      return 'a JSON object';
    default:
      return 'a value';
  }
}

/** The known word that `word` was probably meant to be: the fewest edits away, at most a third of its length. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const bare = word.replace(/^-+/, '').toLowerCase();
  let best: string | undefined;
  let bestEdits = Math.max(1, Math.floor(bare.length / 3)) + 1;
  for (const candidate of known) {
    const name = candidate.replace(/^-+/, '');
    // A beginning counts as near: `--max` for `--max-tokens`.
    const edits = bare.length >= 3 && name.startsWith(bare) ? 1 : editDistance(bare, name);
    if (edits < bestEdits) {
      best = candidate;
      bestEdits = edits;
    }
  }
  return best;
}

/** Insertions, deletions, replacements and swaps of neighbours between two short words (optimal string alignment). */
function editDistance(left: string, right: string): number {
  // Nobody means a known word with a word this long, and the table grows with the product of the lengths.
  if (left.length > 64 || right.length > 64) return Infinity;
  const rows: number[][] = [Array.from({ length: right.length + 1 }, (_, column) => column)];
  for (let i = 1; i <= left.length; i++) {
    const row = [i];
    for (let j = 1; j <= right.length; j++) {
      const same = left[i - 1] === right[j - 1];
      row[j] = Math.min(rows[i - 1]![j]! + 1, row[j - 1]! + 1, rows[i - 1]![j - 1]! + (same ? 0 : 1));
      if (i > 1 && j > 1 && left[i - 1] === right[j - 2] && left[i - 2] === right[j - 1]) {
        row[j] = Math.min(row[j]!, rows[i - 2]![j - 2]! + 1);
      }
    }
    rows.push(row);
  }
  return rows[left.length]![right.length]!;
}

/** The flags as help lists them, two columns, hidden ones left out. */
export function describeFlags(table: FlagTable): string {
  const lines = Object.entries(table)
    .filter(([, spec]) => spec.hidden !== true)
    .map(([name, spec]) => {
      const value = 'value' in spec ? ` ${spec.value}` : spec.kind === 'choice' ? ` ${spec.choices.join('|')}` : '';
      return { left: `${spec.short === undefined ? '    ' : `-${spec.short}, `}--${name}${value}`, about: spec.about };
    });
  const width = Math.max(...lines.map(({ left }) => left.length));
  const indent = ' '.repeat(width + 4);
  return lines
    .map(({ left, about }) => `  ${left.padEnd(width)}  ${wrap(about, WIDTH - width - 4).join(`\n${indent}`)}`)
    .join('\n');
}

/** For commands without arguments besides flags. @throws UsageError `usage` that says which flag was probably left out. */
export function refusePositional(positionals: readonly string[]): void {
  const [first] = positionals;
  if (first === undefined) return;
  const flag = /\.gguf$/i.test(first) ? 'a model goes after -m' : 'a prompt goes after -p, in quotes';
  throw new UsageError(`unexpected argument ${JSON.stringify(first)}: ${flag}`);
}
