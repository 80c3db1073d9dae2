/** Composes a kernel's WGSL: bindings in order, and each weight's decoder under names of its own. */

import { InternalError } from '../../../errors.ts';
import type { Weight } from '../../../model/weights.ts';
import type { FormatId } from '../../../quant/index.ts';
import type { Binding } from '../builder.ts';
import { gpuFormat } from '../formats/index.ts';
import { pairLoads, planeWords, weightCode } from '../formats.ts';
import { weightHelpers } from '../wgsl.ts';

/** How WGSL reads a bound matrix. */
export interface MatrixText {
  /** `fn (row: u32, b: u32) -> array<vec4f, 8>`; `row` counts words. */
  readonly decode: string;
  /** `fn (row: u32, b: u32) -> Codes`, of formats that have codes. */
  readonly codes: string;
  /** Its two halves: `fn (row: u32, b: u32) -> array<vec4u, loads>` and `fn (l: array<vec4u, loads>, b: u32) -> Codes`. */
  readonly load: string;
  readonly codesOf: string;
  /** 0 for formats that have no codes. */
  readonly loads: number;
  /** The same of blocks b, an even number, and b + 1: `array<vec4u, pairLoads>`, CodesPair. */
  readonly loadPair: string;
  readonly codesPair: string;
  readonly pairLoads: number;
  readonly format: FormatId;
  readonly rowWords: number;
  readonly columns: number;
  /** Blocks of 32 columns; columns beyond the last are zero. */
  readonly blocks: number;
}

export class KernelText {
  readonly bindings: Binding[] = [];
  readonly #parts: string[] = [];
  #helpers = false;

  /** Binds a buffer as `var<storage> name: array<type>`. */
  bind(binding: Exclude<Binding, { kind: 'weight' }>, name: string, type: string): this {
    const access = 'access' in binding && binding.access === 'write' ? 'read_write' : 'read';
    this.#parts.push(`@group(0) @binding(${this.bindings.length}) var<storage, ${access}> ${name}: array<${type}>;`);
    this.bindings.push(binding);
    return this;
  }

  /** Binds a vector of f32, as it is or by fours. */
  vector(weight: string, name: string, type: 'f32' | 'vec4f' = 'f32'): this {
    this.#parts.push(`@group(0) @binding(${this.bindings.length}) var<storage, read> ${name}: array<${type}>;`);
    this.bindings.push({ kind: 'weight', name: weight });
    return this;
  }

  /** Binds a matrix, or a stack of them, and declares its decoder. */
  matrix(weight: Weight): MatrixText {
    const format = gpuFormat(weight.format);
    if (format === undefined) throw new InternalError(`a kernel was planned for the format ${weight.format}`);
    const binding = this.bindings.length;
    const columns = columnsOf(weight);
    if (!this.#helpers) this.#parts.push(weightHelpers);
    this.#helpers = true;
    this.#parts.push(renamed(weightCode({ format, columns, binding }), `_${binding}`));
    this.bindings.push({ kind: 'weight', name: weight.name });
    return {
      decode: `decode32_${binding}`,
      codes: `codes32_${binding}`,
      load: `loads32_${binding}`,
      codesOf: `codesOf_${binding}`,
      loads: format.loads?.length ?? 0,
      loadPair: `loadsPair_${binding}`,
      codesPair: `codesPair_${binding}`,
      pairLoads: pairLoads(format).length,
      format: weight.format,
      rowWords: planeWords(format, columns).rowWords,
      columns,
      blocks: Math.ceil(columns / 32),
    };
  }

  code(body: string): string {
    return `${this.#parts.join('\n')}\n${body}`;
  }
}

/** Gives all that a weight's code declares a suffix, since one kernel reads several weights. */
function renamed(code: string, suffix: string): string {
  const declared = [...code.matchAll(/^(?:fn|const)\s+(\w+)/gm)].map((match) => match[1]);
  const names = new Set(['w', ...declared]);
  return code.replace(/(?<![.\w])[A-Za-z_]\w*/g, (name) => (names.has(name) ? `${name}${suffix}` : name));
}

export function columnsOf({ shape }: Weight): number {
  return shape.at(-1) as number;
}

/** Rows of a matrix, or of one matrix of a stack. */
export function rowsOf({ shape }: Weight): number {
  return shape.length < 2 ? 1 : (shape.at(-2) as number);
}

/** A line for each number below `count`: what must stay in registers cannot be an array that a variable indexes. */
export function unrolled(count: number, line: (i: number) => string): string {
  return Array.from({ length: count }, (_, i) => line(i)).join('\n');
}

/** The sum of terms as a tree whose shape depends on their number alone. */
export function treeSum(terms: readonly string[]): string {
  if (terms.length === 1) return terms[0] as string;
  const middle = terms.length >> 1;
  return `(${treeSum(terms.slice(0, middle))} + ${treeSum(terms.slice(middle))})`;
}

/** Workgroups in x and y for a count that may be beyond what one dimension takes. */
export function spread(count: number): readonly [x: number, y: number] {
  const x = Math.min(count, 32768);
  return [x, x === 0 ? 0 : Math.ceil(count / x)];
}

/**
 * WGSL of `fn inputAt(row: u32, v: u32) -> vec4f`: columns 4v … 4v + 3 of a row of `x`, zero beyond `columns`.
 * `type` is what `x` is an array of: whole vectors where rows are made of them.
 */
export function rowReader(columns: number): { readonly type: string; readonly code: string } {
  if (columns % 4 === 0) {
    const vectors = columns / 4;
    return {
      type: 'vec4f',
      code: /* wgsl */ `
fn inputAt(row: u32, v: u32) -> vec4f {
  if (v >= ${vectors}u) { return vec4f(); }
  return x[row * ${vectors}u + v];
}`,
    };
  }
  return {
    type: 'f32',
    code: /* wgsl */ `
fn inputAt(row: u32, v: u32) -> vec4f {
  var found = vec4f();
  for (var i = 0u; i < 4u; i++) {
    if (4u * v + i < ${columns}u) { found[i] = x[row * ${columns}u + 4u * v + i]; }
  }
  return found;
}`,
  };
}
