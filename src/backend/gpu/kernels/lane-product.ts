/**
 * What the products of step rows share. Each of a workgroup's lanes owns a block of 32 columns; the workgroup reads the
 * input row side by side, norms it and brings it into the form that the weights' format asks for, each lane multiplies its
 * block with several weight rows, and sums go over the lanes in an order that depends on the number of blocks alone.
 */

import type { RowNorm } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Tolerance } from '../../kernel.ts';
import { gpuFormat } from '../formats/index.ts';
import { INT8_FEATURE, int8Helpers } from '../int8.ts';
import { columnsOf, type KernelText, type MatrixText, unrolled } from './kernel-text.ts';
import { f32Literal } from './snippets.ts';

/** What the input of a product is turned into. */
export interface Encoding {
  readonly id: 'f32' | 'int8';
  readonly tolerance: Tolerance;
  /** Blocks that a lane owns side by side, at the most; what two of them share is decoded once. */
  readonly span: 1 | 2;
  /** Blocks that are in work at once, at the most: what is staged of them shares the 16 KiB that every device has. */
  readonly mostBlocks: number;
  /** Weight rows that a lane multiplies at once, at the most; as many more are on their way meanwhile. */
  readonly mostRows: number;
  /** Run rows that share a workgroup's weights. */
  readonly tiles: readonly number[];
  /**
   * WGSL, once a module, after `weightHelpers`; declares the types `Loaded`, `Weights` and `Input`, of as many blocks as `span`
   * says, and `dotLane(weights: Weights, input: Input) -> f32`.
   * @param matrices that the module has, which all load as much
   */
  helpers(span: 1 | 2, matrices: readonly MatrixText[]): string;
  /** WGSL of `Loaded` from block `b` on of the row that begins at word `row`. */
  load(matrix: MatrixText, lane: { readonly row: string; readonly b: string; readonly span: 1 | 2 }): string;
  /** WGSL of the `Weights` that were loaded, which reads nothing. */
  decode(matrix: MatrixText, lane: { readonly loaded: string; readonly b: string; readonly span: 1 | 2 }): string;
}

export const f32Encoding: Encoding = {
  id: 'f32',
  tolerance: { relativeRms: 1e-6, reason: 'f32 sums in several lanes where the reference has f64 sums' },
  span: 1,
  mostBlocks: 64,
  mostRows: 1,
  tiles: [1, 4],
  helpers: () => /* wgsl */ `
alias Loaded = array<vec4f, 8>;
alias Weights = array<vec4f, 8>;
alias Input = array<vec4f, 8>;
fn dotLane(w: Weights, x: Input) -> f32 {
  let low = fma(w[3], x[3], fma(w[2], x[2], fma(w[1], x[1], w[0] * x[0])));
  let high = fma(w[7], x[7], fma(w[6], x[6], fma(w[5], x[5], w[4] * x[4])));
  let sum = low + high;
  return (sum.x + sum.y) + (sum.z + sum.w);
}`,
  load: ({ decode }, { row, b }) => `${decode}(${row}, ${b})`,
  decode: (_, { loaded }) => loaded,
};

export const int8Encoding: Encoding = {
  id: 'int8',
  tolerance: { relativeRms: 1e-2, reason: 'activations are int8 with one scale for 32 values' },
  span: 2,
  mostBlocks: 128,
  mostRows: 4,
  tiles: [1, 2, 4],
  helpers: (span, matrices) => {
    const types =
      span === 1
        ? `alias Weights = Codes;
alias Input = Encoded;
fn dotLane(w: Weights, x: Input) -> f32 { return dotCodes(w, x); }`
        : `alias Weights = CodesPair;
struct Input { first: Encoded, second: Encoded }
fn dotLane(w: Weights, x: Input) -> f32 { return dotCodes(w.first, x.first) + dotCodes(w.second, x.second); }`;
    const loadsOf = ({ loads, pairLoads }: MatrixText) => (span === 1 ? loads : pairLoads);
    const most = Math.max(...matrices.map(loadsOf));
    // Matrices of several formats share variables, so each load is as long as the longest.
    const lanes = matrices.map((matrix) => {
      const [load, codes] = span === 1 ? [matrix.load, matrix.codesOf] : [matrix.loadPair, matrix.codesPair];
      const own = Array.from({ length: loadsOf(matrix) }, (_, i) => `l[${i}]`);
      const padded = [...own, ...Array.from({ length: most - own.length }, () => 'vec4u()')];
      return `fn ${load}Lane(row: u32, b: u32) -> Loaded { let l = ${load}(row, b); return Loaded(${padded.join(', ')}); }
fn ${codes}Lane(l: Loaded, b: u32) -> Weights { return ${codes}(array<vec4u, ${own.length}>(${own.join(', ')}), b); }`;
    });
    return /* wgsl */ `${int8Helpers}\n${types}\nalias Loaded = array<vec4u, ${most}>;\n${lanes.join('\n')}`;
  },
  load: ({ load, loadPair }, { row, b, span }) => `${span === 1 ? load : loadPair}Lane(${row}, ${b})`,
  decode: ({ codesOf, codesPair }, { loaded, b, span }) => `${span === 1 ? codesOf : codesPair}Lane(${loaded}, ${b})`,
};

/**
 * true, or why an encoding does not serve a weight. int8 is for formats whose own rounding is far coarser than its own;
 * those of 32 values a block belong to small models, which feel every rounding.
 */
export function acceptsEncoding(
  encoding: Encoding,
  features: ReadonlySet<string>,
  weights: readonly (readonly [name: string, weight: Pick<Weight, 'format' | 'shape'>])[],
): true | string {
  if (encoding.id === 'f32') return true;
  if (!features.has(INT8_FEATURE)) return `needs ${INT8_FEATURE} of WGSL`;
  for (const [name, { format, shape }] of weights) {
    if (gpuFormat(format)?.activations !== 'int8') return `${name}: int8 activations do not suit ${format}`;
    const columns = shape.at(-1) as number;
    if (columns % 32 !== 0) return `${name}: needs columns in multiples of 32, found ${columns}`;
  }
  return true;
}

/** How the blocks of a row are shared out among the threads of a workgroup. */
export interface Lanes {
  /** Blocks of a row. */
  readonly blocks: number;
  /** Threads that share a weight row. */
  readonly lanes: number;
  /** Blocks of each, side by side. */
  readonly span: 1 | 2;
  /** How often all lanes take their next blocks. */
  readonly rounds: number;
  /** Groups of lanes, each with weight rows of its own. */
  readonly teams: number;
  /** Those beyond the teams only help to stage. A power of two where a norm is made. */
  readonly threads: number;
}

/** Threads of a workgroup: many share what is staged; few outputs are spread thin instead, over all of a large device. */
const threadsFor = (outputs: number) => (outputs >= 1024 ? 256 : 64);

/** @param outputs weight rows of all workgroups */
export function lanesOf(blocks: number, outputs: number, encoding: Encoding): Lanes {
  const { rounds, lanes, span } = roundsOf(blocks, encoding.mostBlocks, encoding);
  let threads = threadsFor(outputs);
  while (threads < lanes) threads *= 2;
  return { blocks, lanes, span, rounds, teams: Math.floor(threads / lanes), threads };
}

/** Blocks in rounds of at most `most`, the last of which may be beyond the row. */
export function roundsOf(blocks: number, most: number, encoding: Encoding): Pick<Lanes, 'rounds' | 'lanes' | 'span'> {
  const rounds = Math.ceil(blocks / most);
  const span = encoding.span === 2 && blocks % (2 * rounds) === 0 ? 2 : 1;
  return { rounds, lanes: Math.ceil(blocks / rounds / span), span };
}

/** Workgroups that keep a large device busy; with many more the last ones wait for others to end. */
const ENOUGH_GROUPS = 256;
/** Turns of a workgroup, at the most: what staging its input costs is little by then. */
const MOST_TURNS = 8;

/** What a workgroup makes. */
export interface Turns {
  /** Weight rows of a team in a turn. */
  readonly rows: number;
  readonly turns: number;
}

/**
 * Few outputs are spread over many workgroups, of many each workgroup takes several turns with the input that it staged.
 * @param outputs weight rows of all workgroups
 * @param mostRows of a team in a turn
 */
export function turnsOf(outputs: number, { teams, rounds, span }: Lanes, mostRows: number): Turns {
  let rows = Math.max(1, mostRows / span);
  while (rows > 1 && outputs / (teams * rows) < ENOUGH_GROUPS) rows /= 2;
  const turns = Math.floor(outputs / (teams * rows * ENOUGH_GROUPS));
  return { rows, turns: rounds > 1 ? 1 : Math.max(1, Math.min(MOST_TURNS, turns)) };
}

/** u32 of workgroup memory that staging and sums take in turns, and what each of them takes of it. */
export interface Sums {
  /** u32 of `scratch`. */
  readonly words: number;
  /** Declares `putPart(output, lane, value)`, `gather(tid)` and `laneSum(output)`. */
  readonly code: string;
  /** Statements between the last `laneSum` and the next `putPart`. */
  readonly again: string;
}

/**
 * WGSL of sums over lanes in `scratch`: every lane calls `putPart` for each of its team's outputs, every thread
 * `gather` (it holds barriers), and `laneSum` gives the sum of an output below `outputs` to whoever asks.
 */
export function laneSums(outputs: number, { lanes, threads }: Lanes): Sums {
  // Partial sums that are left of an output before the last round.
  const segments = lanes >= 24 ? 8 : 1;
  // An odd distance keeps threads that read different outputs on different banks.
  const stride = lanes | 1;
  const per = Math.ceil(lanes / segments);
  const part = (i: string) => `bitcast<f32>(scratch[${i}])`;
  const put = `fn putPart(output: u32, lane: u32, value: f32) { scratch[output * ${stride}u + lane] = bitcast<u32>(value); }`;
  if (segments === 1) {
    return {
      words: outputs * stride,
      again: '  workgroupBarrier();',
      code: /* wgsl */ `
${put}
fn gather(tid: u32) { workgroupBarrier(); }
fn laneSum(output: u32) -> f32 {
  let at = output * ${stride}u;
  var sum = ${part('at')};
  for (var k = 1u; k < ${lanes}u; k++) { sum += ${part('at + k')}; }
  return sum;
}`,
    };
  }
  return {
    words: outputs * stride,
    again: '',
    code: /* wgsl */ `
var<workgroup> segments: array<f32, ${outputs * segments}>;
${put}
fn gather(tid: u32) {
  workgroupBarrier();
  for (var i = tid; i < ${outputs * segments}u; i += ${threads}u) {
    let first = i % ${segments}u;
    let at = (i / ${segments}u) * ${stride}u + first;
    var sum = ${part('at')};
    for (var k = 1u; k < ${per}u; k++) {
      ${lanes % segments === 0 ? '' : `if (first + k * ${segments}u < ${lanes}u) `}{ sum += ${part(`at + k * ${segments}u`)}; }
    }
    segments[i] = sum;
  }
  workgroupBarrier();
}
fn laneSum(output: u32) -> f32 {
  let at = output * ${segments}u;
  return ((segments[at] + segments[at + 1u]) + (segments[at + 2u] + segments[at + 3u])) +
    ((segments[at + 4u] + segments[at + 5u]) + (segments[at + 6u] + segments[at + 7u]));
}`,
  };
}

/** The input rows of a workgroup on their way to its lanes; statements of one round, in this order. */
export interface Staging {
  /** u32 of `scratch`. */
  readonly words: number;
  /** Declares workgroup memory and functions; after `inputAt(row, v)`, which gives four columns of a row, or zeros. */
  readonly functions: string;
  /** Before the first round. */
  readonly start: string;
  /** Reads each thread's share of the rows. Reads of weights come next, so that both are on their way together. */
  fetch(round: string): string;
  /** Makes `x0` …, the lane's blocks of each tile row. It holds barriers. */
  readonly stage: string;
  /** After the last round. It holds barriers, where it is anything. */
  readonly end: string;
  /** WGSL of what sums of tile row `t` are multiplied with after `end`; the norm's factor, which no product waits for. */
  factor(t: string): string;
}

/** Partial sums of squares that are left for the last to add up. */
const SQUARES = 16;

/**
 * @param given.row WGSL of the input row of tile row `t`
 * @param given.norm whose weight is bound as `normWeight`, an array like the input's
 */
export function staging(given: {
  readonly encoding: Encoding;
  readonly lanes: Lanes;
  readonly columns: number;
  readonly tile: number;
  readonly row: (t: number) => string;
  readonly norm?: RowNorm;
}): Staging {
  const { encoding, lanes, columns, tile, row, norm } = given;
  const { threads, rounds } = lanes;
  /** Fours of a round, and of each thread. */
  const fours = 8 * lanes.lanes * lanes.span;
  const each = Math.ceil(fours / threads);
  const whole = fours % threads === 0;
  const share: Share = {
    lanes,
    tile,
    all: (body) =>
      unrolled(each, (i) => {
        const v = i === 0 ? 'tid' : `(tid + ${i * threads}u)`;
        return whole || i + 1 < each ? `    ${body(i, v)}` : `    if (${v} < ${fours}u) { ${body(i, v)} }`;
      }),
  };
  const form = encoding.id === 'f32' ? plainForm(share) : int8Form(share);
  const fetch = (round: string) => {
    const first = rounds === 1 ? '' : `${round} * ${fours}u + `;
    const place = (i: number) =>
      whole ? `${first}tid + ${i * threads}u` : `${first}min(tid + ${i * threads}u, ${fours - 1}u)`;
    return [
      unrolled(tile, (t) => unrolled(each, (i) => `  var v${t}_${i} = inputAt(${row(t)}, ${place(i)});`)),
      ...(norm === undefined ? [] : [unrolled(each, (i) => `  let n${i} = normWeightAt(${place(i)});`)]),
    ].join('\n');
  };
  const steps = (inside: string) =>
    `${rounds === 1 ? '' : '  workgroupBarrier();\n'}${form.put(0)}
  workgroupBarrier();
${inside}${form.take(0)}
${unrolled(tile - 1, (i) => `  workgroupBarrier();\n${form.put(i + 1)}\n  workgroupBarrier();\n${form.take(i + 1)}`)}
${form.last}`;
  if (norm === undefined) {
    const { words, functions } = form;
    return { words, functions, start: '', fetch, stage: steps(''), end: '', factor: () => '1.0' };
  }
  const functions = /* wgsl */ `
var<workgroup> squares: array<f32, ${tile * threads}>;
var<workgroup> squareSums: array<f32, ${tile * SQUARES}>;
fn putSquares(t: u32, tid: u32, x: vec4f) { squares[t * ${threads}u + tid] = (x.x + x.y) + (x.z + x.w); }
fn gatherSquares(tid: u32) {
  if (tid < ${tile * SQUARES}u) {
    let at = (tid / ${SQUARES}u) * ${threads}u + tid % ${SQUARES}u;
    var sum = squares[at];
    for (var i = 1u; i < ${threads / SQUARES}u; i++) { sum += squares[at + i * ${SQUARES}u]; }
    squareSums[tid] = sum;
  }
}
fn normFactor(t: u32) -> f32 {
  var sum = squareSums[t * ${SQUARES}u];
  for (var i = 1u; i < ${SQUARES}u; i++) { sum += squareSums[t * ${SQUARES}u + i]; }
  return inverseSqrt(sum / ${f32Literal(columns)} + ${f32Literal(norm.epsilon)});
}
fn normWeightAt(v: u32) -> vec4f { return ${normWeightAt(columns, lanes)}; }`;
  // Of the rows themselves; what goes on to the products has the norm's weight in it already.
  const square = unrolled(tile, (t) =>
    share.all((i) => `square${t} = fma(v${t}_${i}, v${t}_${i}, square${t}); v${t}_${i} *= n${i};`),
  );
  const put = unrolled(tile, (t) => `  putSquares(${t}u, tid, square${t});`);
  return {
    words: form.words,
    functions: `${functions}${form.functions}`,
    start: unrolled(tile, (t) => `  var square${t} = vec4f();`),
    fetch,
    stage: rounds === 1 ? `${square}\n${put}\n${steps('  gatherSquares(tid);\n')}` : `${square}\n${steps('')}`,
    end: rounds === 1 ? '' : `${put}\n  workgroupBarrier();\n  gatherSquares(tid);\n  workgroupBarrier();`,
    factor: (t) => `normFactor(${t})`,
  };
}

function normWeightAt(columns: number, { lanes, span, rounds }: Lanes): string {
  if (columns === 32 * lanes * span * rounds) return 'normWeight[v]';
  if (columns % 4 === 0) return `normWeight[min(v, ${columns / 4 - 1}u)]`;
  const one = (c: number) => `normWeight[min(4u * v + ${c}u, ${columns - 1}u)]`;
  return `vec4f(${[0, 1, 2, 3].map(one).join(', ')})`;
}

/** What a thread has of a round: the fours `tid`, `tid` + threads …, in `v<t>_<i>`. */
interface Share {
  readonly lanes: Lanes;
  readonly tile: number;
  /** Statements for each of a thread's fours that there is: its number among its own, and in the round. */
  readonly all: (body: (i: number, v: string) => string) => string;
}

/** Statements that stage a tile row: put, barrier, take; and after the last row, to the end. */
interface Form {
  readonly words: number;
  readonly functions: string;
  put(t: number): string;
  take(t: number): string;
  readonly last: string;
}

/** Vectors in the order of a block's eighths, so that lanes read neighbours; the odd distance spreads what is written. */
function plainForm({ lanes: { lanes }, all }: Share): Form {
  const stride = lanes | 1;
  return {
    words: 0,
    functions: `\nvar<workgroup> staged: array<vec4f, ${8 * stride}>;`,
    put: (t) => all((i, v) => `staged[(${v} % 8u) * ${stride}u + ${v} / 8u] = v${t}_${i};`),
    take: (t) =>
      `  let x${t} = array<vec4f, 8>(${Array.from({ length: 8 }, (_, k) => `staged[${k * stride}u + lane]`).join(', ')});`,
    last: '  workgroupBarrier();',
  };
}

/** The largest of each block is found in `scratch`, then everyone rounds its own to bytes. */
function int8Form({ lanes: { lanes, span }, tile, all }: Share): Form {
  const blocks = lanes * span;
  const stride = blocks + 4;
  // A lane's second block lies as far on as there are lanes, so that lanes read neighbours.
  const place = span === 1 ? 'b' : `(b >> 1u) + (b & 1u) * ${lanes}u`;
  return {
    words: 8 * blocks,
    functions: /* wgsl */ `
// [tile][8 words of four columns][blocks], and a scale for each block.
var<workgroup> words: array<u32, ${tile * 8 * stride}>;
var<workgroup> scales: array<f32, ${tile * blocks}>;
fn sizeOfFour(x: vec4f) -> u32 {
  let size = sizeOf(x);
  return max(max(size.x, size.y), max(size.z, size.w));
}
fn stageBytes(t: u32, v: u32, x: vec4f) {
  let first = v & ~7u;
  var most = scratch[first];
  for (var k = 1u; k < 8u; k++) { most = max(most, scratch[first + k]); }
  let b = v / 8u;
  let place = ${place};
  words[(t * 8u + v % 8u) * ${stride}u + place] = bytesFor(x, inverseFor(most));
  if (v % 8u == 0u) { scales[t * ${blocks}u + place] = scaleFor(most); }
}
fn stagedBlock(t: u32, place: u32) -> Encoded {
  let at = t * ${8 * stride}u + place;
  let lo = vec4u(words[at], words[at + ${stride}u], words[at + ${2 * stride}u], words[at + ${3 * stride}u]);
  let hi = vec4u(words[at + ${4 * stride}u], words[at + ${5 * stride}u], words[at + ${6 * stride}u], words[at + ${7 * stride}u]);
  return encodedOf(lo, hi, scales[t * ${blocks}u + place]);
}`,
    put: (t) => all((i, v) => `scratch[${v}] = sizeOfFour(v${t}_${i});`),
    take: (t) => all((i, v) => `stageBytes(${t}u, ${v}, v${t}_${i});`),
    last: `  workgroupBarrier();\n${unrolled(tile, (t) => {
      const block = (k: number) => `stagedBlock(${t}u, lane${k === 0 ? '' : ` + ${lanes}u`})`;
      return `  let x${t} = ${span === 1 ? block(0) : `Input(${block(0)}, ${block(1)})`};`;
    })}`,
  };
}

/** Binds the weight of a norm as {@link staging} reads it. */
export function bindNorm(text: KernelText, norm: RowNorm | undefined, columns: number): void {
  if (norm !== undefined) text.vector(norm.weight, 'normWeight', columns % 4 === 0 ? 'vec4f' : 'f32');
}

/** Declares the workgroup memory that staging and sums take in turns. */
export function scratchCode(...users: readonly { readonly words: number }[]): string {
  return `var<workgroup> scratch: array<u32, ${Math.max(1, ...users.map(({ words }) => words))}>;`;
}

/** Input blocks of a weight's rows. */
export function blocksOf(weight: Weight): number {
  return Math.ceil(columnsOf(weight) / 32);
}
