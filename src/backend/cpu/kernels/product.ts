/**
 * Rows times a matrix, for one worker: blocks of rows, and arenas other than the one that holds the activations, whose rows
 * are copied in and whose results are copied out.
 */

import type { FormatId } from '../../../quant/index.ts';
import { ROW_BLOCK, UNIT_GROUPS } from '../builder.ts';
import { type CpuFormat, cpuFormat, groupBytes } from '../formats.ts';
import type { Arena, KernelCall, WorkerView } from '../task.ts';

/** Bytes of the tiles at the start of scratch; see `assembly/tiles/tile.ts`. */
const TILES_BYTES = 8 * 192;

/** Scratch for products that read `xBytes` bytes of a row, in units of so many groups, in any arena. */
export function productScratch(xBytes: number, unitGroups = UNIT_GROUPS): number {
  return TILES_BYTES + ROW_BLOCK * (16 + xBytes + unitGroups * 16);
}

export interface ProductRequest {
  /** Address of the first group, in the weight's arena. */
  readonly weight: number;
  readonly groups: number;
  /** Address of row 0 of the input, in arena 0. */
  readonly x: number;
  /** Address in arena 0 of the numbers of the rows wanted (i32), or 0: rows 0 … count - 1. */
  readonly xIndex: number;
  readonly count: number;
  /** Address in arena 0 where row 0's result of the first group goes. */
  readonly out: number;
  readonly outStride: number;
  /** As `xIndex`, for the result. */
  readonly outIndex: number;
  /** Equal keys and `x` within a stage mean the same input rows. */
  readonly key: number;
}

export class Product {
  readonly groupBytes: number;
  readonly #worker: WorkerView;
  readonly #arena: Arena;
  readonly #away: boolean;
  readonly #format: CpuFormat;
  readonly #columns: number;
  readonly #xStride: number;
  readonly #xBytes: number;

  /** @param options.xBytes what is read of a row; all of it if it is not said */
  constructor(
    worker: WorkerView,
    options: {
      readonly arena: number;
      readonly format: FormatId;
      readonly columns: number;
      readonly xStride: number;
      readonly xBytes?: number;
    },
  ) {
    this.#worker = worker;
    this.#arena = worker.arenas[options.arena] as Arena;
    this.#away = options.arena !== 0;
    this.#format = cpuFormat(options.format) as CpuFormat;
    this.#columns = options.columns;
    this.#xStride = options.xStride;
    this.#xBytes = options.xBytes ?? options.xStride;
    this.groupBytes = groupBytes(options.format, options.columns);
  }

  multiply(request: ProductRequest): void {
    const { x, xIndex, count, out, outStride, outIndex } = request;
    for (let first = 0; first < count; first += ROW_BLOCK) {
      const rows = Math.min(ROW_BLOCK, count - first);
      const from = xIndex === 0 ? x + first * this.#xStride : x;
      const index = xIndex === 0 ? 0 : xIndex + first * 4;
      const to = outIndex === 0 ? out + first * outStride : out;
      const toIndex = outIndex === 0 ? 0 : outIndex + first * 4;
      if (this.#away) {
        this.#multiplyAway(request, rows, from, index, to, toIndex, request.key * 64 + first / ROW_BLOCK);
      } else {
        this.#call(request.weight, request.groups, from, this.#xStride, index, rows, to, outStride, toIndex);
      }
    }
  }

  #call(
    weight: number,
    groups: number,
    x: number,
    xStride: number,
    xIndex: number,
    rows: number,
    out: number,
    outStride: number,
    outIndex: number,
  ): void {
    const { kernels, scratch } = this.#arena;
    const { kind, number } = this.#format;
    if (kind === 'block') {
      (kernels.matmul as KernelCall)(
        number,
        weight,
        this.#columns,
        groups,
        x,
        xStride,
        xIndex,
        rows,
        out,
        outStride,
        outIndex,
        scratch,
      );
    } else {
      (kernels.matmulFloat as KernelCall)(
        number,
        weight,
        this.#columns,
        groups,
        x,
        xStride,
        xIndex,
        rows,
        out,
        outStride,
        outIndex,
      );
    }
  }

  #multiplyAway(
    request: ProductRequest,
    rows: number,
    x: number,
    xIndex: number,
    out: number,
    outIndex: number,
    key: number,
  ): void {
    const { home, serial } = this.#worker;
    const { bytes, scratch, brought } = this.#arena;
    const width = this.#xBytes;
    const inside = scratch + TILES_BYTES + ROW_BLOCK * 16;
    const result = inside + ROW_BLOCK * width;
    // Other products of the worker bring theirs to the same place.
    if (brought.serial !== serial || brought.from !== x || brought.key !== key) {
      for (let row = 0; row < rows; row++) {
        const number = xIndex === 0 ? row : (home.i32[xIndex / 4 + row] as number);
        const from = x + number * this.#xStride;
        bytes.set(home.bytes.subarray(from, from + width), inside + row * width);
      }
      this.#arena.brought = { serial, from: x, key };
    }
    const made = request.groups * 16;
    this.#call(request.weight, request.groups, inside, width, 0, rows, result, made, 0);
    for (let row = 0; row < rows; row++) {
      const number = outIndex === 0 ? row : (home.i32[outIndex / 4 + row] as number);
      home.bytes.set(bytes.subarray(result + row * made, result + (row + 1) * made), out + number * request.outStride);
    }
  }
}
