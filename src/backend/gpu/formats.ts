/**
 * How each weight format lies on the device and how WGSL reads it. A matrix is stored row by row; a row is its planes one
 * after the other, each a part of every block (all scales, all nibbles …), begun at a multiple of 16 bytes, so that
 * neighbours in a plane are neighbours in memory and 16 of their bytes are one load. Codes are put in one order for all
 * formats (`formats/reorder.ts`); no value changes.
 *
 * In WGSL a format is `decode32`: the 32 columns of block `b` of a row whose first word is `row`, as eight vec4<f32>; and
 * `codes32`: the same as bytes, scales and minima. `weightCode` writes them out with the binding they read.
 */

import { InternalError } from '../../errors.ts';
import { type FormatId, formatOf } from '../../quant/index.ts';
import { weightHelpers } from './wgsl.ts';

/** Another order of the bits of a plane, within each block. */
export interface Reorder {
  /** Puts whole blocks in order, in place: from word `from` up to word `to`. */
  apply(words: Uint32Array, from: number, to: number): void;
  /**
   * WGSL of the body of a function that returns word `w` of the plane in this order, of four rows at once (a vec4u).
   * @param word WGSL of a word of the plane as the file has it, which may be of the same block as `w`
   */
  gather(word: (index: string) => string): string;
}

export interface GpuFormat {
  readonly id: FormatId;
  /**
   * The parts of a block, in order, in bytes (1, 2 or a multiple of 4); each is a plane. They add up to the block's bytes.
   */
  readonly planes: readonly number[];
  /**
   * What the input of products may be rounded to. `int8`: bytes with one scale for 32 columns, for formats whose own rounding
   * is far coarser (`codes` is there). Absent: nothing less than f32.
   */
  readonly activations?: 'int8';
  /** By plane, what is done to its bits at store time. */
  readonly reorder?: Readonly<Record<number, Reorder>>;
  /** WGSL of functions that `decode` calls. */
  readonly helpers?: string;
  /**
   * WGSL of what block `b` of the row at word `row` is read by, each a vec4u. They are apart from `codes`, so that a kernel
   * may load long before it needs what it loads.
   */
  readonly loads?: readonly string[];
  /**
   * WGSL of `fn codesOf(l: array<vec4u, N>, b: u32) -> Codes`: the columns as bytes with scales, of what the N `loads`
   * brought. Absent, as they are, for formats that have no codes.
   */
  readonly codes?: string;
  /**
   * The same of blocks b, an even number, and b + 1, where they share something: `codes` is WGSL of `fn codesPair(l: array<vec4u,
   * N>, b: u32) -> CodesPair`. Absent: the loads of each, one after the other.
   */
  readonly pair?: { readonly loads: readonly string[]; readonly codes: string };
  /** WGSL of the body of `fn decode32(row: u32, b: u32) -> array<vec4f, 8>`; `weightCode` says what it may use. */
  readonly decode: string;
}

/** Words of the alignment of planes and rows: 16 bytes are the widest load. */
const ALIGN = 4;

/** Words from the start of a row to each plane, and of the whole row. */
export function planeWords(
  format: GpuFormat,
  columns: number,
): { readonly starts: readonly number[]; readonly rowWords: number } {
  const { blockLength } = formatOf(format.id);
  const blocks = columns / blockLength;
  const starts: number[] = [];
  let at = 0;
  for (const bytes of format.planes) {
    starts.push(at);
    at += Math.ceil((blocks * bytes) / (4 * ALIGN)) * ALIGN;
  }
  return { starts, rowWords: at };
}

/**
 * Rows from the file to device words: each block's parts to their planes.
 * @param source whole rows as the file has them
 * @param target [rows][rowWords · 4] bytes from a word's border on; padding becomes zero
 */
export function toPlanes(format: GpuFormat, columns: number, source: Uint8Array, target: Uint8Array): void {
  const { blockLength, blockBytes } = formatOf(format.id);
  const blocks = columns / blockLength;
  const rowBytes = blocks * blockBytes;
  const { starts, rowWords } = planeWords(format, columns);
  const rows = source.byteLength / rowBytes;
  if (!Number.isInteger(rows) || target.byteLength !== rows * rowWords * 4 || target.byteOffset % 4 !== 0) {
    throw new InternalError(
      `${format.id} weights of ${columns} columns: ${source.byteLength} bytes do not fill ${target.byteLength} bytes`,
    );
  }
  if (format.planes.length === 1 && format.reorder === undefined) {
    copyRows({ source, target, rows, rowBytes, stride: rowWords * 4 });
    return;
  }
  const from = new DataView(source.buffer, source.byteOffset, source.byteLength);
  const words = new Uint32Array(target.buffer, target.byteOffset, rows * rowWords);
  for (let row = 0; row < rows; row++) {
    let part = row * rowBytes;
    for (let plane = 0; plane < starts.length; plane++) {
      const bytes = format.planes[plane] as number;
      const start = row * rowWords + (starts[plane] as number);
      const end = row * rowWords + (starts[plane + 1] ?? rowWords);
      const last = start + Math.floor((blocks * bytes) / 4);
      words.fill(0, last, end);
      copyPart({ from, at: part, step: blockBytes, blocks, bytes, words, start });
      format.reorder?.[plane]?.apply(words, start, last);
      part += bytes;
    }
  }
}

function copyRows(rows: {
  readonly source: Uint8Array;
  readonly target: Uint8Array;
  readonly rows: number;
  readonly rowBytes: number;
  readonly stride: number;
}): void {
  const { source, target, rowBytes, stride } = rows;
  if (stride === rowBytes) {
    target.set(source);
    return;
  }
  for (let row = 0; row < rows.rows; row++) {
    target.set(source.subarray(row * rowBytes, (row + 1) * rowBytes), row * stride);
    target.fill(0, row * stride + rowBytes, (row + 1) * stride);
  }
}

/** The part of each of a row's blocks, from byte `at` on, to a plane whose first word is `start`. */
function copyPart(part: {
  readonly from: DataView;
  readonly at: number;
  /** Bytes from a block to the next. */
  readonly step: number;
  readonly blocks: number;
  readonly bytes: number;
  readonly words: Uint32Array;
  readonly start: number;
}): void {
  const { from, step, blocks, bytes, words, start } = part;
  let { at } = part;
  if (bytes % 4 === 0) {
    let to = start;
    for (let block = 0; block < blocks; block++, at += step) {
      for (let i = 0; i < bytes; i += 4) words[to++] = from.getUint32(at + i, true);
    }
  } else if (bytes === 2) {
    const halves = new Uint16Array(words.buffer, words.byteOffset + start * 4, blocks);
    for (let block = 0; block < blocks; block++, at += step) halves[block] = from.getUint16(at, true);
  } else {
    const singles = new Uint8Array(words.buffer, words.byteOffset + start * 4, blocks);
    for (let block = 0; block < blocks; block++, at += step) singles[block] = from.getUint8(at);
  }
}

/**
 * WGSL that declares a weight matrix and its decoder: `w` (storage, read, at `binding`), `ROW_WORDS` (row r begins at word
 * r · ROW_WORDS), `COLUMNS`, `decode32(row, b)`, whose columns beyond COLUMNS are 0, and, where the format has codes,
 * `codes32(row, b)`, which is `codesOf(loads32(row, b), b)`, and `codesPair` of `loadsPair(row, b)` for two blocks. With a `name`, all of them end in it, `decode32_gate`, and so does all that a decoder declares. A module has `weightHelpers` (`wgsl.ts`) once besides.
 *
 * For decoders there are, too: `PLANE_i` (words from the row's start), `word(i)`, `quad(i)` (the 16 bytes from word i, a
 * multiple of 4), `pair(i)` (8 bytes, a multiple of 2), and `byteAt(plane, i)` and `halfAt(plane, i)`: the i-th byte or f16
 * from a word on.
 */
export function weightCode(weight: {
  readonly format: GpuFormat;
  readonly columns: number;
  readonly binding: number;
  readonly name?: string;
}): string {
  const { format, columns, binding, name } = weight;
  const { starts, rowWords } = planeWords(format, columns);
  const code = /* wgsl */ `
@group(0) @binding(${binding}) var<storage, read> w: array<vec4u>;
${starts.map((start, plane) => `const PLANE_${plane} = ${start}u;`).join('\n')}
const ROW_WORDS = ${rowWords}u;
const COLUMNS = ${columns}u;
fn word(i: u32) -> u32 { return w[i >> 2u][i & 3u]; }
fn quad(i: u32) -> vec4u { return w[i >> 2u]; }
fn pair(i: u32) -> vec2u { let q = w[i >> 2u]; return select(q.xy, q.zw, (i & 2u) != 0u); }
fn byteAt(plane: u32, i: u32) -> u32 { return (word(plane + (i >> 2u)) >> ((i & 3u) * 8u)) & 255u; }
fn halfAt(plane: u32, i: u32) -> f32 { return halves(word(plane + (i >> 1u)) >> ((i & 1u) * 16u)).x; }
${format.helpers ?? ''}${codesCode(format)}${pairCode(format)}
fn decode32(row: u32, b: u32) -> array<vec4f, 8> {
  ${format.decode}
}`;
  if (name === undefined) return code;
  const declared = [...code.matchAll(/^\s*(?:@.* )?(?:fn|const|var<storage, read>) (\w+)/gm)].map(([, own]) => own);
  // A component of a vector (`codes.w`) is not a name.
  return code.replace(new RegExp(`(?<!\\.)\\b(${declared.join('|')})\\b`, 'g'), `$1_${name}`);
}

function codesCode({ loads, codes }: GpuFormat): string {
  if (loads === undefined || codes === undefined) return '';
  return /* wgsl */ `
fn loads32(row: u32, b: u32) -> array<vec4u, ${loads.length}> {
  return array<vec4u, ${loads.length}>(${loads.join(', ')});
}
${codes}
fn codes32(row: u32, b: u32) -> Codes { return codesOf(loads32(row, b), b); }`;
}

/** Loads of two blocks, b and b + 1. */
export function pairLoads({ loads = [], pair }: GpuFormat): readonly string[] {
  return pair?.loads ?? [...loads, ...loads.map((load) => load.replace(/\bb\b/g, '(b + 1u)'))];
}

function pairCode(format: GpuFormat): string {
  const { loads, codes, pair } = format;
  if (loads === undefined || codes === undefined) return '';
  const all = pairLoads(format);
  const type = `array<vec4u, ${all.length}>`;
  const half = (from: number) => `array<vec4u, ${loads.length}>(${loads.map((_, i) => `l[${from + i}]`).join(', ')})`;
  return /* wgsl */ `
fn loadsPair(row: u32, b: u32) -> ${type} { return ${type}(${all.join(', ')}); }
${
  pair?.codes ??
  `fn codesPair(l: ${type}, b: u32) -> CodesPair {
  return CodesPair(codesOf(${half(0)}, b), codesOf(${half(loads.length)}, b + 1u));
}`
}`;
}

/** `weightHelpers` and `weightCode`: for kernels that read one weight. */
export function oneWeightCode(weight: {
  readonly format: GpuFormat;
  readonly columns: number;
  readonly binding: number;
}): string {
  return weightHelpers + weightCode(weight);
}
