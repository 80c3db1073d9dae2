/**
 * The numbers of GGUF: metadata value types and tensor types, as the format's specification and ggml's type list give
 * them. What Conclave can compute with is not stated here but in `quant/index.ts`.
 */

import { formats } from '../quant/index.ts';
import type { MetadataType } from './model-file.ts';

export const ARRAY_TYPE = 9;

/** Metadata value types by their number; 9 is the array and holds one of the others. */
export const valueTypes: Readonly<Record<number, MetadataType>> = {
  0: 'u8',
  1: 'i8',
  2: 'u16',
  3: 'i16',
  4: 'u32',
  5: 'i32',
  6: 'f32',
  7: 'bool',
  8: 'string',
  10: 'u64',
  11: 'i64',
  12: 'f64',
};

/** Bytes a value takes at least: a string's are those of its length. */
export const valueBytes: Readonly<Record<MetadataType, number>> = {
  u8: 1,
  i8: 1,
  u16: 2,
  i16: 2,
  u32: 4,
  i32: 4,
  f32: 4,
  bool: 1,
  string: 8,
  u64: 8,
  i64: 8,
  f64: 8,
};

export interface TensorType {
  readonly name: string;
  /** Values a block; absent for types that were removed from the format. */
  readonly blockLength?: number;
  readonly blockBytes?: number;
}

/** Name, values a block, bytes a block: by type number. Removed types keep their number and their name. */
const known: readonly (readonly [number, string, number?, number?])[] = [
  [0, 'F32', 1, 4],
  [1, 'F16', 1, 2],
  [2, 'Q4_0', 32, 18],
  [3, 'Q4_1', 32, 20],
  [4, 'Q4_2'],
  [5, 'Q4_3'],
  [6, 'Q5_0', 32, 22],
  [7, 'Q5_1', 32, 24],
  [8, 'Q8_0', 32, 34],
  [9, 'Q8_1', 32, 36],
  [10, 'Q2_K', 256, 84],
  [11, 'Q3_K', 256, 110],
  [12, 'Q4_K', 256, 144],
  [13, 'Q5_K', 256, 176],
  [14, 'Q6_K', 256, 210],
  [15, 'Q8_K', 256, 292],
  [16, 'IQ2_XXS', 256, 66],
  [17, 'IQ2_XS', 256, 74],
  [18, 'IQ3_XXS', 256, 98],
  [19, 'IQ1_S', 256, 50],
  [20, 'IQ4_NL', 32, 18],
  [21, 'IQ3_S', 256, 110],
  [22, 'IQ2_S', 256, 82],
  [23, 'IQ4_XS', 256, 136],
  [24, 'I8', 1, 1],
  [25, 'I16', 1, 2],
  [26, 'I32', 1, 4],
  [27, 'I64', 1, 8],
  [28, 'F64', 1, 8],
  [29, 'IQ1_M', 256, 56],
  [30, 'BF16', 1, 2],
  [31, 'Q4_0_4_4'],
  [32, 'Q4_0_4_8'],
  [33, 'Q4_0_8_8'],
  [34, 'TQ1_0', 256, 54],
  [35, 'TQ2_0', 256, 66],
  [36, 'IQ4_NL_4_4'],
  [37, 'IQ4_NL_4_8'],
  [38, 'IQ4_NL_8_8'],
  [39, 'MXFP4', 32, 17],
  [40, 'NVFP4', 64, 36],
  [41, 'Q1_0', 128, 18],
  [42, 'Q2_0', 64, 18],
];

/** Every tensor type that GGUF has or had, by its number. */
export const tensorTypes: ReadonlyMap<number, TensorType> = new Map(
  known.map(([number, name, blockLength, blockBytes]) => [number, { name, blockLength, blockBytes }]),
);

/** The names of the GGUF tensor types that Conclave computes with. */
export function supportedTensorTypes(): string[] {
  return formats.filter((format) => format.ggufType !== undefined).map((format) => format.id);
}
