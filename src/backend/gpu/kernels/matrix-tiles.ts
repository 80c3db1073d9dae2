/**
 * Products of many run rows on subgroup matrices: f16 inputs, f32 sums. A workgroup makes a tile of weight rows by run rows;
 * each turn a few blocks of its weights are decoded into workgroup memory beside the activations of the same columns, while
 * those of later turns are on their way. A sum goes over its columns 16 at a time from first to last, whatever the tile.
 */

import type { Weight } from '../../../model/weights.ts';
import { gpuFormat } from '../formats/index.ts';
import type { HalfLayout } from './half.ts';
import { columnsOf, type KernelText, type MatrixText, rowsOf, unrolled } from './kernel-text.ts';

/** How a tile is cut. Its shape changes which rows share a workgroup, never a bit of a result. */
export interface MatrixTile {
  /** Run rows: a multiple of 16 · `down`. */
  readonly height: number;
  /** Weight rows: a multiple of 16 · `across`. */
  readonly rows: number;
  /** Subgroups along the weight rows, and along the run rows. */
  readonly across: number;
  readonly down: number;
  /** Blocks of 32 columns a turn: 1 or 2. */
  readonly turn: number;
  /**
   * Turns from a load to its use. 1: weights wait decoded, which is best where sums keep a thread busy; 2: as they are in
   * memory, which is best for low tiles, whose turns are shorter than a load takes.
   */
  readonly ahead: 1 | 2;
}

/** Weight rows that a tile takes from one matrix; `base` and `first` are WGSL of u32. */
export interface TilePart {
  readonly weight: Weight;
  readonly matrix: MatrixText;
  /** The row of the stack where the matrix begins, and the first row of it that the tile takes. */
  readonly base: string;
  readonly first: string;
}

export interface MatrixKernel {
  readonly text: KernelText;
  readonly tile: MatrixTile;
  /** What `inputs` (array<vec4u>) holds. */
  readonly halves: HalfLayout;
  /** Helpers of `write`, which may call `scaleOf(row)`: what row `row` of `inputs` was divided by. */
  readonly functions?: string;
  /** Statements that declare `count`, how many of the tile's run rows there are (and leave when none), and what they need. */
  readonly start: string;
  /** WGSL of the row of `inputs` for run row `t` of the tile. */
  readonly inputRow: string;
  /** Matrices that share a tile, as many rows of each, one after the other; of several such lists `segment` says which. */
  readonly segments: readonly (readonly TilePart[])[];
  /** Statements for run row `t` of the tile: `s0` is the sum of row `r` of the tile's first part, `s1` that of its second. */
  readonly write: string;
}

const HEADER = 'enable chromium_experimental_subgroup_matrix;\nenable f16;\nenable subgroups;\n';

/** Rows in workgroup memory are a vector longer than they need be: eight of them, one below the other, are in different banks. */
const GAP = 1;

/** Vectors of eight halves from a row in workgroup memory to the next. */
function strideOf({ turn }: MatrixTile): number {
  return 4 * turn + GAP;
}

export function tileBytes(tile: MatrixTile): number {
  const { height, rows } = tile;
  return (height + rows) * strideOf(tile) * 16 + 16 * rows * 4;
}

export function tileThreads({ across, down }: MatrixTile): number {
  return 32 * across * down;
}

/** @returns a whole module */
export function matrixKernel(kernel: MatrixKernel): string {
  const { text, tile, halves, functions = '', start, segments } = kernel;
  const { height, rows, across, down } = tile;
  const stride = strideOf(tile);
  const [columnFragments, rowFragments] = [rows / 16 / across, height / 16 / down];
  const sums = unrolled(rowFragments, (f) =>
    unrolled(columnFragments, (n) => `  var sum${f}_${n}: subgroup_matrix_result<f32, 16, 16>;`),
  );
  return (
    HEADER +
    text.code(/* wgsl */ `
${functions}
// Eight halves an element.
var<workgroup> weights: array<vec4u, ${rows * stride}>;
var<workgroup> activations: array<vec4u, ${height * stride}>;
var<workgroup> sums: array<f32, ${16 * rows}>;

fn scaleOf(row: u32) -> f32 { return bitcast<f32>(inputs[${halves.scales}u + (row >> 2u)][row & 3u]); }
${decoders(segments.flat())}

@compute @workgroup_size(${tileThreads(tile)})
fn main(
  @builtin(workgroup_id) wg: vec3u,
  @builtin(local_invocation_index) tid: u32,
  @builtin(subgroup_id) subgroup: u32,
) {
${start}
  let column = (subgroup % ${across}u) * ${rows / across}u;
  let line = (subgroup / ${across}u) * ${height / down}u;
${sums}
${turns(kernel)}
  workgroupBarrier();
${written(kernel)}
}`)
  );
}

function blocksOf(segments: MatrixKernel['segments']): number {
  return Math.ceil(columnsOf(((segments[0] as readonly TilePart[])[0] as TilePart).weight) / 32);
}

/** All turns. Loads that wait are in as many sets of registers as they are turns ahead; the loop has a turn of each. */
function turns(kernel: MatrixKernel): string {
  const { tile, segments } = kernel;
  const count = Math.ceil(blocksOf(segments) / tile.turn);
  const parts = [weightLoads(kernel), inputLoads(kernel)];
  const each = (code: (loads: Loads) => string) => parts.map(code).join('\n');
  const step = (set: number) => `${
    set > 0 && count % tile.ahead !== 0 ? `    if (turn + ${set}u >= ${count}u) { break; }` : ''
  }
    {
    let now = turn + ${set}u;
    workgroupBarrier();
${each(({ store }) => store(set, 'now'))}
    workgroupBarrier();
    // The last turns load again what they have: a branch would keep loads from being mixed with products.
    let next = min(now + ${tile.ahead}u, ${count - 1}u);
${each(({ load }) => load(set, 'next'))}
${products(tile)}
    }`;
  return `${each(({ declare }) => declare)}
${unrolled(tile.ahead, (set) => each(({ load }) => load(set, `${Math.min(set, count - 1)}u`)))}
  for (var turn = 0u; turn < ${count}u; turn += ${tile.ahead}u) {
${unrolled(tile.ahead, step)}
  }`;
}

/** Statements of a thread's share of a turn: to a set of registers, and from there to workgroup memory. */
interface Loads {
  readonly declare: string;
  load(set: number, turn: string): string;
  store(set: number, turn: string): string;
}

/** Blocks of weight rows; neighbours have neighbouring blocks of a row. */
function weightLoads({ tile, segments }: MatrixKernel): Loads {
  const { rows, turn, ahead } = tile;
  const threads = tileThreads(tile);
  const stride = strideOf(tile);
  const blocks = blocksOf(segments);
  const items = rows * turn;
  const count = Math.ceil(items / threads);
  const partRows = rows / (segments[0] as readonly TilePart[]).length;
  const guarded = (code: string) => (items >= threads ? code : `    if (tid < ${items}u) {\n${code}\n    }`);
  /** Code for the matrix that the row of load `j` is of. */
  const choose = (j: number, code: (part: TilePart, index: number) => string): string =>
    branches(
      segments,
      (i) => `segment == ${i}u`,
      (parts) => {
        const first = Math.floor((j * threads) / turn / partRows);
        const last = Math.floor((Math.min((j + 1) * threads, items) - 1) / turn / partRows);
        if (first === last) return code(parts[first] as TilePart, first);
        return branches(parts, (i) => `row${j} < ${(i + 1) * partRows}u`, code);
      },
    );
  /** For the block of load `j`; of a row's columns the last turn may have blocks that are not there. */
  const withBlock = (j: number, at: string, code: string) =>
    guarded(`    {
      let block = ${at} * ${turn}u + part${j};
${blocks % turn === 0 ? code : `      if (block < ${blocks}u) {\n${code}\n      }`}
    }`);
  const rowOf = (j: number) => {
    const row = `(tid + ${j * threads}u) / ${turn}u`;
    return items >= threads ? row : `min(${row}, ${rows - 1}u)`;
  };
  const most = Math.max(...segments.flat().map(({ matrix }) => matrix.loads));
  const raw = ahead > 1 && segments.flat().every(({ weight }) => hasCodes(weight));
  const kept = (set: number, j: number) =>
    raw ? unrolled(most, (i) => `  var w${set}_${j}_${i}: vec4u;`) : `  var w${set}_${j}: array<vec4u, 4>;`;
  const toMemory = (j: number, value: string) => `      {
        let halves = ${value};
${unrolled(4, (i) => `        weights[row${j} * ${stride}u + part${j} * 4u + ${i}u] = halves[${i}];`)}
      }`;
  return {
    declare: unrolled(
      count,
      (j) => `  let part${j} = (tid + ${j * threads}u) % ${turn}u;
  let row${j} = ${rowOf(j)};
  var base${j} = 0u;
  ${choose(j, ({ weight, matrix, base, first }, i) => {
    const row = `min(${first} + row${j} - ${i * partRows}u, ${rowsOf(weight) - 1}u)`;
    return `base${j} = (${base} + ${row}) * ${matrix.rowWords}u;`;
  })}
${unrolled(ahead, (set) => kept(set, j))}`,
    ),
    load: (set, at) =>
      unrolled(count, (j) =>
        withBlock(
          j,
          at,
          choose(j, (part) => {
            if (!raw) return `      w${set}_${j} = ${halvesOf(part, `base${j}`, 'block')};`;
            const { load, loads } = part.matrix;
            return `      let loaded = ${load}(base${j}, block);
${unrolled(loads, (i) => `      w${set}_${j}_${i} = loaded[${i}];`)}`;
          }),
        ),
      ),
    store: (set, at) =>
      unrolled(count, (j) => {
        const decoded = choose(j, (part) => {
          if (!raw) return toMemory(j, `w${set}_${j}`);
          const { codesOf, loads } = part.matrix;
          const all = Array.from({ length: loads }, (_, i) => `w${set}_${j}_${i}`).join(', ');
          return toMemory(j, halvesOfCodes(part.weight, `${codesOf}(array<vec4u, ${loads}>(${all}), block)`));
        });
        const none = `${guarded(`    if (${at} * ${turn}u + part${j} >= ${blocks}u) {\n${toMemory(j, 'array<vec4u, 4>()')}\n    }`)}`;
        return `${withBlock(j, at, decoded)}${blocks % turn === 0 ? '' : `\n${none}`}`;
      }),
  };
}

/** Vectors of eight activations. Where the tile has fewer rows than it could, the last is loaded for those that are not there. */
function inputLoads({ tile, halves, inputRow }: MatrixKernel): Loads {
  const { height, turn, ahead } = tile;
  const threads = tileThreads(tile);
  const stride = strideOf(tile);
  const wide = 4 * turn;
  const items = height * wide;
  const count = Math.ceil(items / threads);
  const guarded = (j: number, code: string) =>
    (j + 1) * threads <= items ? code : `    if (tid + ${j * threads}u < ${items}u) { ${code.trim()} }`;
  return {
    declare: unrolled(
      count,
      (j) => `  let line${j} = (tid + ${j * threads}u) / ${wide}u;
  let vector${j} = (tid + ${j * threads}u) % ${wide}u;
  var from${j} = vector${j};
  { let t = min(line${j}, count - 1u); from${j} += (${inputRow}) * ${halves.stride}u; }
${unrolled(ahead, (set) => `  var x${set}_${j} = vec4u();`)}`,
    ),
    load: (set, at) => unrolled(count, (j) => guarded(j, `    x${set}_${j} = inputs[from${j} + ${at} * ${wide}u];`)),
    store: (set) =>
      unrolled(count, (j) => guarded(j, `    activations[line${j} * ${stride}u + vector${j}] = x${set}_${j};`)),
  };
}

/** The products of a turn: 16 columns after 16 columns. A subgroup whose run rows are not there leaves them out. */
function products(tile: MatrixTile): string {
  const { height, rows, across, down, turn } = tile;
  const stride = strideOf(tile);
  const columnFragments = rows / 16 / across;
  const all = unrolled(2 * turn, (k) => {
    const right = unrolled(columnFragments, (n) => {
      const at = `(column + ${16 * n}u) * ${stride}u + ${2 * k}u`;
      return `      let b${n} = subgroupMatrixLoad<subgroup_matrix_right<f16, 16, 16>, col_major>(&weights, ${at}, ${stride}u);`;
    });
    const left = unrolled(height / 16 / down, (f) => {
      const at = `(line + ${16 * f}u) * ${stride}u + ${2 * k}u`;
      return `      let a${f} = subgroupMatrixLoad<subgroup_matrix_left<f16, 16, 16>, row_major>(&activations, ${at}, ${stride}u);
${unrolled(columnFragments, (n) => `      sum${f}_${n} = subgroupMatrixMultiplyAccumulate(a${f}, b${n}, sum${f}_${n});`)}`;
    });
    return `    {\n${right}\n${left}\n    }`;
  });
  return down === 1 ? all : `    if (line < count) {\n${all}\n    }`;
}

/** The sums of 16 run rows after 16 go through workgroup memory to whoever writes them. */
function written({ tile, segments, write }: MatrixKernel): string {
  const { height, rows, across, down } = tile;
  const parts = (segments[0] as readonly TilePart[]).length;
  const partRows = rows / parts;
  const rowFragments = height / 16 / down;
  return unrolled(height / 16, (i) => {
    const own = i % rowFragments;
    const stores = unrolled(rows / 16 / across, (n) => {
      return `      subgroupMatrixStore<row_major>(&sums, column + ${16 * n}u, sum${own}_${n}, ${rows}u);`;
    });
    return `  if (${16 * i}u < count) {
    if (line == ${16 * (i - own)}u) {
${stores}
    }
    workgroupBarrier();
    for (var i = tid; i < ${16 * partRows}u; i += ${tileThreads(tile)}u) {
      let t = ${16 * i}u + i / ${partRows}u;
      let r = i % ${partRows}u;
      if (t < count) {
${unrolled(parts, (p) => `        let s${p} = sums[(i / ${partRows}u) * ${rows}u + r + ${p * partRows}u];`)}
${write}
      }
    }
    workgroupBarrier();
  }`;
  });
}

/** What chooses among alternatives; the last needs no condition. */
function branches<T>(
  list: readonly T[],
  condition: (i: number) => string,
  code: (item: T, i: number) => string,
): string {
  if (list.length === 1) return code(list[0] as T, 0);
  return list
    .map((item, i) => {
      const test = i + 1 < list.length ? `if (${condition(i)}) ` : '';
      return `${i === 0 ? '' : ' else '}${test}{\n${code(item, i)}\n}`;
    })
    .join('');
}

/**
 * Values of formats that have codes are multiplied by this: f16 then has all its digits for values down to 1e-6, and goes
 * up to 1023. Not of those whose values f16 holds as they are.
 */
const RAISED = 64;

function hasCodes({ format }: Weight): boolean {
  return gpuFormat(format)?.codes !== undefined;
}

/** What a weight's halves are too large by. */
export function raisedBy(weight: Weight): number {
  return hasCodes(weight) && !weight.format.startsWith('NVFP4') ? RAISED : 1;
}

/** WGSL of the 32 columns of a block as array<vec4u, 4>, in the order of `half.ts`. */
function halvesOf({ weight, matrix }: TilePart, row: string, block: string): string {
  return hasCodes(weight)
    ? halvesOfCodes(weight, `${matrix.codes}(${row}, ${block})`)
    : `halvesOfValues(${matrix.decode}(${row}, ${block}))`;
}

function halvesOfCodes(weight: Weight, codes: string): string {
  return `halvesOfCodes(${codes}, ${raisedBy(weight)}.0)`;
}

function decoders(parts: readonly TilePart[]): string {
  const weights = parts.map(({ weight }) => weight);
  const codes = weights.some(hasCodes)
    ? /* wgsl */ `
// A byte becomes the number 1024 + 128 + code by being the low bits of an f16; the sign bit counts as 128 first.
fn ofWord(word: u32, scale: vec2<f16>, minimum: vec2<f16>) -> vec2u {
  let even = bitcast<vec2<f16>>((word & 0x00ff00ffu) ^ 0x64806480u) - vec2<f16>(1152.0h);
  let odd = bitcast<vec2<f16>>(((word >> 8u) & 0x00ff00ffu) ^ 0x64806480u) - vec2<f16>(1152.0h);
  return vec2u(bitcast<u32>(fma(even, scale, -minimum)), bitcast<u32>(fma(odd, scale, -minimum)));
}
fn halvesOfCodes(c: Codes, raised: f32) -> array<vec4u, 4> {
  let scale = vec2<f16>(c.scale * raised);
  let minimum = vec2<f16>(c.minimum * raised);
  return array<vec4u, 4>(
    vec4u(ofWord(c.lo.x, scale.xx, minimum.xx), ofWord(c.lo.y, scale.xx, minimum.xx)),
    vec4u(ofWord(c.lo.z, scale.xx, minimum.xx), ofWord(c.lo.w, scale.xx, minimum.xx)),
    vec4u(ofWord(c.hi.x, scale.yy, minimum.yy), ofWord(c.hi.y, scale.yy, minimum.yy)),
    vec4u(ofWord(c.hi.z, scale.yy, minimum.yy), ofWord(c.hi.w, scale.yy, minimum.yy)));
}`
    : '';
  const values = weights.every(hasCodes)
    ? ''
    : /* wgsl */ `
fn halvesOfValues(d: array<vec4f, 8>) -> array<vec4u, 4> {
  return array<vec4u, 4>(
${[0, 2, 4, 6]
  .map((i) => {
    const pairs = [i, i + 1].flatMap((k) => [`pack2x16float(d[${k}].xz)`, `pack2x16float(d[${k}].yw)`]);
    return `    vec4u(${pairs.join(', ')})`;
  })
  .join(',\n')});
}`;
  return codes + values;
}
