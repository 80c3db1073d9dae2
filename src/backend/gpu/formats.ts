/**
 * How each weight format lies on the device and how WGSL reads it. A matrix is stored row by row; a row is its planes one
 * after the other, each a part of every block (all scales, all nibbles …) padded to whole words, so that every read is of
 * aligned words and neighbours in a plane are neighbours in memory.
 *
 * The WGSL of a format is one function, `decode32`: the 32 columns of block `b` of a row whose first word is `row`, as eight
 * vec4<f32>. It reads the weight through `w` (array<u32>), declared by the kernel.
 */

import { type FormatId, formatOf } from '../../quant/index.ts';

export interface GpuFormat {
  readonly id: FormatId;
  /** The parts of a block, in order, in bytes; each is a plane. They add up to the block's bytes. */
  readonly planes: readonly number[];
  /**
   * WGSL of `fn decode32(row: u32, b: u32) -> array<vec4f, 8>`. `PLANE_i` (u32 constants, words from the row's start) are
   * declared before it, as are the helpers of `wgsl.ts`.
   */
  readonly decode: string;
}

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
    at += Math.ceil((blocks * bytes) / 4);
  }
  return { starts, rowWords: at };
}

/**
 * Rows from the file to device words: each block's parts to their planes.
 * @param source whole rows as the file has them
 * @param target [rows][rowWords · 4] bytes, zero where padding stands
 */
export function toPlanes(format: GpuFormat, columns: number, source: Uint8Array, target: Uint8Array): void {
  const { blockLength, blockBytes } = formatOf(format.id);
  const blocks = columns / blockLength;
  const { starts, rowWords } = planeWords(format, columns);
  const rows = source.byteLength / (blocks * blockBytes);
  for (let row = 0; row < rows; row++) {
    const from = row * blocks * blockBytes;
    const to = row * rowWords * 4;
    let part = 0;
    format.planes.forEach((bytes, plane) => {
      const start = to + (starts[plane] as number) * 4;
      for (let block = 0; block < blocks; block++) {
        const at = from + block * blockBytes + part;
        const out = start + block * bytes;
        for (let i = 0; i < bytes; i++) target[out + i] = source[at + i] as number;
      }
      part += bytes;
    });
  }
}
