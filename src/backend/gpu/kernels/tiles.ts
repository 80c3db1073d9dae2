/**
 * Products of many run rows: tiles of 64 weight rows by 64 or 32 run rows, 32 columns at a time through workgroup memory,
 * where a block is decoded once a tile; each thread keeps the sums of four weight rows in registers. A sum goes over its
 * columns from first to last, whatever rows are in the tile.
 */

import type { KernelText, MatrixText } from './kernel-text.ts';
import { unrolled } from './kernel-text.ts';

/** Weight rows of a tile. */
export const TILE_ROWS = 64;

export interface TileKernel {
  readonly text: KernelText;
  /** Run rows of a tile. */
  readonly height: 64 | 32;
  readonly blocks: number;
  /** WGSL of the first block that is multiplied and of the one behind the last; all of them if it is not said. */
  readonly range?: readonly [first: string, end: string];
  /** Helpers, and `fn inputAt(row: u32, v: u32) -> vec4f`: four columns of an input row. */
  readonly functions: string;
  /** Statements that declare `count`, how many of the tile's run rows there are (and leave when none), and what they need. */
  readonly start: string;
  /** WGSL of the input row of run row `t` of the tile. */
  readonly inputRow: string;
  /** Statements that put the block `b` of weight row `tid` of the tile into `let d`. */
  readonly decode: (declare: (matrix: MatrixText, row: string) => string) => string;
  /** Statements for the four sums s0 … s3 of weight rows `tx`, `tx` + 16 … of the tile and its run row `t`. */
  readonly write: string;
}

/** @returns a whole module; workgroups are 256 threads */
export function tileKernel(kernel: TileKernel): string {
  const { text, height, blocks, functions, start, inputRow, decode, write } = kernel;
  const [first, end] = kernel.range ?? ['0u', `${blocks}u`];
  const per = height / 16;
  const loads = (height * 8) / 256;
  const store = (matrix: MatrixText, row: string) => `
      let d = ${matrix.decode}((${row}) * ${matrix.rowWords}u, b);
${unrolled(8, (k) => `      weights[tid * 8u + (${k}u ^ (tid & 7u))] = d[${k}];`)}`;
  return text.code(/* wgsl */ `
${functions}
// Rows of eight vectors; the exclusive or spreads what neighbours read and write over the banks.
var<workgroup> weights: array<vec4f, ${TILE_ROWS * 8}>;
var<workgroup> inputs: array<vec4f, ${height * 8}>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
${start}
  let tx = tid % 16u;
  let ty = tid / 16u;
${unrolled(
  loads,
  (j) => `  let load${j} = ${j * 32}u + tid / 8u;
  var from${j} = 0u;
  { let t = load${j}; if (t < count) { from${j} = ${inputRow}; } }`,
)}
${unrolled(per, (i) => unrolled(4, (j) => `  var a${i}_${j} = 0.0;`))}
  for (var b = ${first}; b < ${end}; b++) {
    workgroupBarrier();
    if (tid < ${TILE_ROWS}u) {
${decode(store)}
    }
${unrolled(
  loads,
  (j) => `    {
      var value = vec4f();
      if (load${j} < count) { value = inputAt(from${j}, b * 8u + tid % 8u); }
      inputs[load${j} * 8u + ((tid % 8u) ^ (load${j} & 7u))] = value;
    }`,
)}
    workgroupBarrier();
    // Sums of 32 columns by themselves: adding few large ones loses less than adding many small ones.
${unrolled(per, (i) => unrolled(4, (j) => `    var p${i}_${j} = 0.0;`))}
    for (var k = 0u; k < 8u; k++) {
${unrolled(4, (j) => `      let w${j} = weights[(tx + ${16 * j}u) * 8u + (k ^ (tx & 7u))];`)}
${unrolled(per, (i) => `      let x${i} = inputs[(ty + ${16 * i}u) * 8u + (k ^ (ty & 7u))];`)}
${unrolled(per, (i) =>
  unrolled(
    4,
    (j) =>
      `      p${i}_${j} = fma(w${j}.w, x${i}.w, fma(w${j}.z, x${i}.z, fma(w${j}.y, x${i}.y, fma(w${j}.x, x${i}.x, p${i}_${j}))));`,
  ),
)}
    }
${unrolled(per, (i) => unrolled(4, (j) => `    a${i}_${j} += p${i}_${j};`))}
  }
${unrolled(
  per,
  (i) => `  {
    let t = ty + ${16 * i}u;
    if (t < count) {
${unrolled(4, (j) => `      let s${j} = a${i}_${j};`)}
${write}
    }
  }`,
)}
}`);
}
