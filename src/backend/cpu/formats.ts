/**
 * What the CPU kernels know of each weight format: its number in the WASM tables and how a block is laid out in a group.
 *
 * A matrix at its home is groups of four rows, one after the other, the last one filled up with rows of zero bytes; a stack is
 * its matrices one after the other. A group has the bytes of its four rows and no others, in this order: block by block along
 * the rows, in a block segment by segment (`segments`), in a segment unit by unit, and of each unit that of row 0, row 1, row 2
 * and row 3. So the unit u of row r in segment s of block b lies at
 *
 *     4 · (b · blockBytes + what the segments before s take) + (4 · u + r) · unit
 *
 * and reading units at a stride of four gives a row's block back as the file has it.
 */

import { acceptsBlocks, type FormatId, formatOf } from '../../quant/index.ts';

/** Rows that stand side by side in a group. */
export const GROUP_ROWS = 4;
/**
 * How activations are encoded for a product (`assembly/activations.ts`). `int8`: 32 bytes with one scale, for the formats
 * whose own rounding is far coarser. `digits`: two bytes a value, and `words`: one i16, of 16 bits either way; for formats
 * of 32 values a block, whose models are small and feel every rounding.
 */
export type Encoding = 'f32' | 'int8' | 'digits' | 'words';

/** Bytes of 32 encoded activations, scale and sums included. */
export const encodedBlockBytes: Readonly<Record<Exclude<Encoding, 'f32'>, number>> = {
  int8: 48,
  digits: 80,
  words: 80,
};

export interface CpuFormat {
  readonly id: FormatId;
  /** `block`: integer products (`assembly/tiles/index.ts`); `float`: f32 products (`assembly/float.ts`). */
  readonly kind: 'block' | 'float';
  /** What its products take; `encodingOf` in `assembly/tiles/index.ts` says the same. */
  readonly activations: Encoding;
  /** Its number there. */
  readonly number: number;
  /** The parts of a block, in order, as [bytes, unit]: so many bytes, interleaved in units of 1, 2 or 4. */
  readonly segments: readonly (readonly [bytes: number, unit: 1 | 2 | 4])[];
}

type Segments = CpuFormat['segments'];

const block =
  (activations: Encoding) =>
  (id: FormatId, number: number, ...segments: Segments): CpuFormat => ({
    id,
    kind: 'block',
    activations,
    number,
    segments,
  });
const int8 = block('int8');
const digits = block('digits');
const words = block('words');
const float = (id: FormatId, number: number, ...segments: Segments): CpuFormat => ({
  id,
  kind: 'float',
  activations: 'f32',
  number,
  segments,
});

export const cpuFormats: readonly CpuFormat[] = [
  float('F32', 0, [4, 4]),
  float('F16', 1, [2, 2]),
  float('BF16', 2, [2, 2]),
  float('FP8_32', 3, [4, 4], [32, 4]),
  float('FP8_128', 4, [4, 4], [128, 4]),
  digits('Q4_0', 0, [2, 2], [16, 4]),
  digits('Q4_1', 1, [2, 2], [2, 2], [16, 4]),
  digits('Q5_0', 2, [2, 2], [20, 4]),
  digits('Q5_1', 3, [2, 2], [2, 2], [20, 4]),
  words('Q8_0', 4, [2, 2], [32, 4]),
  int8('Q2_K', 5, [80, 4], [2, 2], [2, 2]),
  int8('Q3_K', 6, [108, 4], [2, 2]),
  int8('Q4_K', 7, [2, 2], [2, 2], [140, 4]),
  int8('Q5_K', 8, [2, 2], [2, 2], [172, 4]),
  int8('Q6_K', 9, [208, 4], [2, 2]),
  words('IQ4_NL', 10, [2, 2], [16, 4]),
  words('IQ4_XS', 11, [2, 2], [2, 2], [132, 4]),
  int8('MXFP4', 12, [1, 1], [16, 4]),
  int8('NVFP4', 13, [36, 4]),
  int8('NVFP4_32', 14, [2, 2], [16, 4]),
];

const byId = new Map(cpuFormats.map((format) => [format.id, format]));

export function cpuFormat(id: FormatId): CpuFormat | undefined {
  return byId.get(id);
}

/** Segments as `interleave` takes them: bytes · 256 + unit, five of them. */
export function packedSegments(format: CpuFormat): number[] {
  return Array.from({ length: 5 }, (_, index) => {
    const segment = format.segments[index];
    return segment === undefined ? 0 : segment[0] * 256 + segment[1];
  });
}

/** Bytes of four rows of `columns`. */
export function groupBytes(id: FormatId, columns: number): number {
  const { blockLength, blockBytes } = formatOf(id);
  return (columns / blockLength) * blockBytes * GROUP_ROWS;
}

export function groupsOf(rows: number): number {
  return Math.ceil(rows / GROUP_ROWS);
}

const known = cpuFormats.map(({ id }) => id);

/** true, or why the kernels cannot take a [rows, columns] weight of this format. */
export function acceptsWeight(name: string, format: FormatId, columns: number): true | string {
  return acceptsBlocks(known, { name, format, columns });
}
