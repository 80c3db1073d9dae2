/**
 * WGSL that puts matrices into planes (`formats.ts`) on the device, as `toPlanes` does on the host, word for word, padding
 * included. It reads rows as the file has them, or as the CPU stores them: groups of four rows side by side.
 *
 * A thread makes one word of four neighbouring rows, held as a vec4u with a row in each lane. Neighbouring threads make
 * neighbouring words of those rows and read neighbouring words of the source.
 */

import { InternalError } from '../../errors.ts';
import { formatOf } from '../../quant/index.ts';
import { type GpuFormat, planeWords, type Reorder } from './formats.ts';

/** Rows that a thread works on; also those of a group. */
export const ROWS_AT_ONCE = 4;
/** Threads of a workgroup. */
export const REPACK_THREADS = 256;

/** The parts of a block in order, as [bytes, unit]: a group holds the same unit of its four rows side by side. */
export type Segments = readonly (readonly [bytes: number, unit: 1 | 2 | 4])[];

/** Words of an entry: where the matrix begins in the source and in the target, in words, and its rows. */
export const ENTRY_WORDS = 3;

/**
 * The kernel (entry point `main`) for matrices of one format and width. Bindings: 0 the source (words, read), 1 the target
 * (words, written), 2 the entries (read). Workgroups: z is an entry; x · y cover `threadsOf` its rows, however they are shared
 * between x and y. It stays within the matrices that the entries name.
 * @param segments how the CPU's groups are made; absent: the source holds the file's rows
 */
export function repackCode(matrix: {
  readonly format: GpuFormat;
  readonly columns: number;
  readonly segments?: Segments;
}): string {
  const { format, columns, segments } = matrix;
  const { blockLength, blockBytes } = formatOf(format.id);
  const blocks = columns / blockLength;
  const { starts, rowWords } = planeWords(format, columns);
  let from = 0;
  const planes = format.planes.map((bytes, index): Plane => {
    const words = (starts[index + 1] ?? rowWords) - (starts[index] as number);
    const plane = { index, bytes, from, words, reorder: format.reorder?.[index] };
    from += bytes;
    return plane;
  });
  const branches = planes.map(({ index }) => {
    const word = `word${index}(rows, w - ${starts[index]}u)`;
    return index === planes.length - 1 ? `return ${word};` : `if (w < ${starts[index + 1]}u) { return ${word}; }`;
  });
  const block = { id: format.id, blocks, blockBytes, segments };
  return /* wgsl */ `
struct Entry { origin: u32, place: u32, rows: u32 }
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> planes: array<u32>;
@group(0) @binding(2) var<storage, read> entries: array<Entry>;
const ROW_WORDS = ${rowWords}u;
${segments === undefined ? fileRows(blocks * blockBytes) : groupRows(blocks * blockBytes)}
${planes.map((plane) => planeCode(plane, block)).join('')}
fn wordOf(rows: Rows, w: u32) -> vec4u {
  ${branches.join('\n  ')}
}
@compute @workgroup_size(${REPACK_THREADS}) fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) workgroups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let entry = entries[workgroup.z];
  let item = (workgroup.y * workgroups.x + workgroup.x) * ${REPACK_THREADS}u + lane;
  let group = item / ROW_WORDS;
  let row = group * ${ROWS_AT_ONCE}u;
  if (row >= entry.rows) { return; }
  let w = item - group * ROW_WORDS;
  let words = wordOf(rowsFrom(entry, group), w);
  let at = entry.place + row * ROW_WORDS + w;
  let left = entry.rows - row;
  planes[at] = words.x;
  if (left > 1u) { planes[at + ROW_WORDS] = words.y; }
  if (left > 2u) { planes[at + 2u * ROW_WORDS] = words.z; }
  if (left > 3u) { planes[at + 3u * ROW_WORDS] = words.w; }
}`;
}

/** Threads that a matrix takes. */
export function threadsOf(
  format: GpuFormat,
  { rows, columns }: { readonly rows: number; readonly columns: number },
): number {
  return Math.ceil(rows / ROWS_AT_ONCE) * planeWords(format, columns).rowWords;
}

/** Bytes of a matrix as it is read: the file's rows, or groups, of which the last may hold absent rows. */
export function sourceBytes(
  format: GpuFormat,
  { rows, columns }: { readonly rows: number; readonly columns: number },
  layout: 'groups' | 'rows',
): number {
  const { blockLength, blockBytes } = formatOf(format.id);
  const held = layout === 'groups' ? Math.ceil(rows / ROWS_AT_ONCE) * ROWS_AT_ONCE : rows;
  return (columns / blockLength) * blockBytes * held;
}

/**
 * Both sources have these functions: `rowsFrom` finds four rows, and `words4`, `halves4` and `bytes4` read 4, 2 or 1 bytes
 * from byte `at` of each of them. In a group byte `at` of row 0 begins at byte 4 · at, that is at word `at`, whatever the units
 * are: before it stand as many bytes of each of the four rows, and with it the three others' units.
 */
function groupRows(rowBytes: number): string {
  return /* wgsl */ `
alias Rows = u32;
fn rowsFrom(entry: Entry, group: u32) -> Rows { return entry.origin + group * ${rowBytes}u; }
fn words4(rows: Rows, at: u32) -> vec4u {
  let i = rows + at;
  return vec4u(source[i], source[i + 1u], source[i + 2u], source[i + 3u]);
}
fn halves4(rows: Rows, at: u32) -> vec4u {
  let a = source[rows + at];
  let b = source[rows + at + 1u];
  return vec4u(a & 0xffffu, a >> 16u, b & 0xffffu, b >> 16u);
}
fn bytes4(rows: Rows, at: u32) -> vec4u {
  return (vec4u(source[rows + at]) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(255u);
}`;
}

function fileRows(rowBytes: number): string {
  return /* wgsl */ `
struct Rows { origin: u32, starts: vec4u }
fn rowsFrom(entry: Entry, group: u32) -> Rows {
  // Instead of a row that is not there the last one is read; what is made of it goes nowhere.
  let rows = min(vec4u(group * ${ROWS_AT_ONCE}u) + vec4u(0u, 1u, 2u, 3u), vec4u(entry.rows - 1u));
  return Rows(entry.origin, rows * vec4u(${rowBytes}u));
}
fn wordFrom(origin: u32, byte: u32) -> u32 {
  let i = origin + (byte >> 2u);
  let shift = (byte & 3u) * 8u;
  let low = source[i] >> shift;
  if (shift == 0u) { return low; }
  return low | (source[i + 1u] << (32u - shift));
}
fn words4(rows: Rows, at: u32) -> vec4u {
  let byte = rows.starts + vec4u(at);
  let o = rows.origin;
  return vec4u(wordFrom(o, byte.x), wordFrom(o, byte.y), wordFrom(o, byte.z), wordFrom(o, byte.w));
}
fn bytes4(rows: Rows, at: u32) -> vec4u {
  let byte = rows.starts + vec4u(at);
  let i = vec4u(rows.origin) + (byte >> vec4u(2u));
  let words = vec4u(source[i.x], source[i.y], source[i.z], source[i.w]);
  return (words >> ((byte & vec4u(3u)) * 8u)) & vec4u(255u);
}
fn halves4(rows: Rows, at: u32) -> vec4u { return bytes4(rows, at) | (bytes4(rows, at + 1u) << vec4u(8u)); }`;
}

interface Plane {
  readonly index: number;
  /** Of a block. */
  readonly bytes: number;
  /** Where they begin in the block. */
  readonly from: number;
  /** Of a row, padding included. */
  readonly words: number;
  readonly reorder: Reorder | undefined;
}

interface BlockFacts {
  readonly id: string;
  /** Of a row. */
  readonly blocks: number;
  readonly blockBytes: number;
  readonly segments: Segments | undefined;
}

/** `fn word<i>(rows, w)`: word w of plane i, of four rows; beyond the blocks it is zero. */
function planeCode(plane: Plane, block: BlockFacts): string {
  const { index, bytes, from, words, reorder } = plane;
  const { blocks, blockBytes } = block;
  const used = Math.ceil((blocks * bytes) / 4);
  const padding = used === words ? '' : `if (w >= ${used}u) { return vec4u(); }`;
  if (bytes % 4 === 0) {
    const each = bytes / 4;
    const body = reorder?.gather((word) => `part${index}(rows, ${word})`) ?? `return part${index}(rows, w);`;
    return /* wgsl */ `
fn part${index}(rows: Rows, w: u32) -> vec4u {
  let block = w / ${each}u;
  let i = w - block * ${each}u;
  let at = block * ${blockBytes}u + ${from}u + 4u * i;
  ${wordRead(plane, block)}
}
fn word${index}(rows: Rows, w: u32) -> vec4u {
  ${padding}
  ${body}
}`;
  }
  const ragged = (blocks * bytes) % 4 !== 0;
  if (bytes === 2) {
    holdsUnits(plane, block, 2);
    return /* wgsl */ `
fn word${index}(rows: Rows, w: u32) -> vec4u {
  ${padding}
  let at = w * ${2 * blockBytes}u + ${from}u;
  let low = halves4(rows, at);
  ${ragged ? `if (w == ${used - 1}u) { return low; }` : ''}
  return low | (halves4(rows, at + ${blockBytes}u) << vec4u(16u));
}`;
  }
  holdsUnits(plane, block, 1);
  return /* wgsl */ `
fn word${index}(rows: Rows, w: u32) -> vec4u {
  ${padding}
  let end = min(4u * w + 4u, ${blocks}u);
  var all = vec4u();
  for (var block = 4u * w; block < end; block++) {
    all |= bytes4(rows, block * ${blockBytes}u + ${from}u) << vec4u(8u * (block & 3u));
  }
  return all;
}`;
}

/** WGSL that returns the word at byte `at`, the i-th of its part of the block. In a group it may be two units of two bytes. */
function wordRead(plane: Plane, block: BlockFacts): string {
  const words = 'return words4(rows, at);';
  const halves = 'return halves4(rows, at) | (halves4(rows, at + 2u) << vec4u(16u));';
  const { bytes, from } = plane;
  let split = 0;
  for (let i = 0; i < bytes / 4; i++) {
    const word = { from: from + 4 * i, bytes: 4 };
    if (unitAt(block, word.from) === 4) continue;
    holdsUnits(word, block, 2);
    if (i >= 32) throw new InternalError(`${block.id}: the units of a plane of ${bytes} bytes`);
    split += 2 ** i;
  }
  if (split === 0) return words;
  if (split === 2 ** (bytes / 4) - 1) return halves;
  return `if (((${split}u >> i) & 1u) != 0u) { ${halves} }\n  ${words}`;
}

/** Bytes of the unit that byte `at` of a block is in; the file's rows can be read in any. */
function unitAt({ id, segments }: BlockFacts, at: number): number {
  if (segments === undefined) return 4;
  let end = 0;
  for (const [bytes, unit] of segments) {
    end += bytes;
    if (at < end) return unit;
  }
  throw new InternalError(`${id}: byte ${at} of a block is in no segment`);
}

/** @throws InternalError where a part of a block is made of other units than `unit` */
function holdsUnits(part: { readonly from: number; readonly bytes: number }, block: BlockFacts, unit: number): void {
  if (block.segments === undefined) return;
  for (let at = part.from; at < part.from + part.bytes; at += unit) {
    const found = unitAt(block, at);
    if (found !== unit) {
      throw new InternalError(`${block.id}: byte ${at} is in a unit of ${found} bytes, and ${unit} were expected`);
    }
  }
}
