/**
 * How the input row of a step's product gets to the lanes of a workgroup (`lane-product.ts`): read side by side, normed, and
 * staged in workgroup memory in the form that the weights' format asks for.
 */

import type { RowNorm } from '../../../model/graph.ts';
import { type KernelText, unrolled } from './kernel-text.ts';
import { exchanged } from './lane-exchange.ts';
import type { Encoding, Lanes } from './lane-product.ts';
import { f32Literal } from './snippets.ts';

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
  /** Whether lanes share by exchange (`lane-exchange.ts`). */
  readonly subgroups?: boolean;
}): Staging {
  const { encoding, lanes, columns, tile, row, norm, subgroups = false } = given;
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
  const form = encoding.id === 'f32' ? plainForm(share) : subgroups ? exchangedForm(share) : int8Form(share);
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
    form.put === undefined
      ? `${rounds === 1 ? '' : '  workgroupBarrier();\n'}${unrolled(tile, form.take)}
${form.last}
${inside}`
      : stepsWith(form.put, inside);
  const stepsWith = (put: (t: number) => string, inside: string) =>
    `${rounds === 1 ? '' : '  workgroupBarrier();\n'}${put(0)}
  workgroupBarrier();
${inside}${form.take(0)}
${unrolled(tile - 1, (i) => `  workgroupBarrier();\n${put(i + 1)}\n  workgroupBarrier();\n${form.take(i + 1)}`)}
${form.last}`;
  if (norm === undefined) {
    const { words, functions } = form;
    return { words, functions, start: '', fetch, stage: steps(''), end: '', factor: () => '1.0' };
  }
  const sums = subgroups ? exchangedSquares(tile, threads) : gatheredSquares(tile, threads);
  const functions = /* wgsl */ `
${sums}
fn normFactor(t: u32) -> f32 { return inverseSqrt(squareSum(t) / ${f32Literal(columns)} + ${f32Literal(norm.epsilon)}); }
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
  /** Absent: there is nothing to put, and one barrier is enough for all rows. */
  readonly put?: (t: number) => string;
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

/** Squares of a row, all threads' together: `putSquares`, a barrier, `gatherSquares`, a barrier, `squareSum`. */
function gatheredSquares(tile: number, threads: number): string {
  return /* wgsl */ `
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
fn squareSum(t: u32) -> f32 {
  var sum = squareSums[t * ${SQUARES}u];
  for (var i = 1u; i < ${SQUARES}u; i++) { sum += squareSums[t * ${SQUARES}u + i]; }
  return sum;
}`;
}

/** The same among the lanes of subgroups. */
function exchangedSquares(tile: number, threads: number): string {
  const subgroups = threads / 32;
  return /* wgsl */ `
var<workgroup> squareSums: array<f32, ${tile * subgroups}>;
fn putSquares(t: u32, tid: u32, x: vec4f) {
  var sum = (x.x + x.y) + (x.z + x.w);
${exchanged('sum', (a, b) => `${a} + ${b}`)}
  if (tid % 32u == 0u) { squareSums[t * ${subgroups}u + tid / 32u] = sum; }
}
fn gatherSquares(tid: u32) {}
fn squareSum(t: u32) -> f32 {
  var sum = squareSums[t * ${subgroups}u];
  for (var i = 1u; i < ${subgroups}u; i++) { sum += squareSums[t * ${subgroups}u + i]; }
  return sum;
}`;
}

/** The largest of each block is found in `scratch`, then everyone rounds its own to bytes. */
function int8Form(share: Share): Form {
  const { lanes, all } = share;
  const { functions, take, last } = byteForm(
    share,
    `let first = v & ~7u;
  var most = scratch[first];
  for (var k = 1u; k < 8u; k++) { most = max(most, scratch[first + k]); }`,
  );
  return {
    words: 8 * lanes.lanes * lanes.span,
    functions,
    put: (t) => all((i, v) => `scratch[${v}] = sizeOfFour(v${t}_${i});`),
    take,
    last,
  };
}

/** A block's eight threads, which stand side by side, tell each other the largest. */
function exchangedForm(share: Share): Form {
  const most = exchanged('most', (a, b) => `max(${a}, ${b})`, [4, 2, 1]);
  return { words: 0, ...byteForm(share, `var most = sizeOfFour(x);\n${most}`) };
}

/** @param most statements that find `most`, the largest of the block of the four `v`, which is `x` */
function byteForm(
  { lanes: { lanes, span }, tile, all }: Share,
  most: string,
): Pick<Form, 'functions' | 'take' | 'last'> {
  const blocks = lanes * span;
  const stride = blocks + 4;
  // A lane's second block lies as far on as there are lanes, so that lanes read neighbours.
  const place = span === 1 ? 'b' : `(b >> 1u) + (b & 1u) * ${lanes}u`;
  return {
    functions: /* wgsl */ `
// [tile][8 words of four columns][blocks], and a scale for each block.
var<workgroup> words: array<u32, ${tile * 8 * stride}>;
var<workgroup> scales: array<f32, ${tile * blocks}>;
fn sizeOfFour(x: vec4f) -> u32 {
  let size = sizeOf(x);
  return max(max(size.x, size.y), max(size.z, size.w));
}
fn stageBytes(t: u32, v: u32, x: vec4f) {
  ${most}
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
