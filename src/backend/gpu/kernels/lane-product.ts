/**
 * What the products of step rows share: a workgroup's lanes own a block of 32 columns each, keep the input of their block
 * in registers in the form that the weights' format asks for, multiply it with as many weight rows as the workgroup has,
 * and add up over the lanes in an order that depends on the number of blocks alone. Loads of weights come first in the
 * text, so that they are under way while the input is made ready.
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
  /** WGSL type of 32 columns of the input, and of a weight's. */
  readonly inputType: string;
  readonly weightType: string;
  /** WGSL, once a module, after `weightHelpers`; it declares `prepare(values) -> input` and `dotBlock(weight, input) -> f32`. */
  readonly helpers: string;
  /** WGSL of the 32 columns of block `b` of the row that begins at word `row`. */
  load(matrix: MatrixText, row: string, b: string): string;
}

export const f32Encoding: Encoding = {
  id: 'f32',
  tolerance: { relativeRms: 1e-6, reason: 'f32 sums in several lanes where the reference has f64 sums' },
  inputType: 'array<vec4f, 8>',
  weightType: 'array<vec4f, 8>',
  helpers: /* wgsl */ `
fn prepare(values: array<vec4f, 8>) -> array<vec4f, 8> { return values; }
fn dotBlock(w: array<vec4f, 8>, x: array<vec4f, 8>) -> f32 {
  let low = fma(w[3], x[3], fma(w[2], x[2], fma(w[1], x[1], w[0] * x[0])));
  let high = fma(w[7], x[7], fma(w[6], x[6], fma(w[5], x[5], w[4] * x[4])));
  let sum = low + high;
  return (sum.x + sum.y) + (sum.z + sum.w);
}`,
  load: ({ decode }, row, b) => `${decode}(${row}, ${b})`,
};

export const int8Encoding: Encoding = {
  id: 'int8',
  tolerance: { relativeRms: 1e-2, reason: 'activations are int8 with one scale for 32 values' },
  inputType: 'Encoded',
  weightType: 'Codes',
  helpers: /* wgsl */ `${int8Helpers}
fn prepare(values: array<vec4f, 8>) -> Encoded { return encode32(values); }
fn dotBlock(w: Codes, x: Encoded) -> f32 { return dotCodes(w, x); }`,
  load: ({ codes }, row, b) => `${codes}(${row}, ${b})`,
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
  /** Threads that share a weight row. */
  readonly lanes: number;
  /** Blocks of each, the last of which may be beyond the row. */
  readonly each: number;
  /** Groups of lanes, each with weight rows of its own. */
  readonly teams: number;
  readonly threads: number;
}

/** At most so many blocks of a row are in work at once; what is beyond goes through the same lanes again. */
const MOST_LANES = 128;
/** Workgroups have at least about so many threads. */
const LEAST_THREADS = 64;

export function lanesOf(blocks: number): Lanes {
  const each = Math.ceil(blocks / MOST_LANES);
  const lanes = Math.ceil(blocks / each);
  const teams = Math.max(1, Math.floor(LEAST_THREADS / lanes));
  return { lanes, each, teams, threads: lanes * teams };
}

/** How many partial sums are left of a row before the last round of {@link laneSums}. */
const segmentsOf = (lanes: number) => (lanes >= 24 ? 8 : 1);

/**
 * WGSL that declares workgroup memory for `outputs` sums over lanes, and `fn laneSum(tid, output) -> f32`, which is called
 * in uniform control flow by every thread after each has put its part at `partial[output * STRIDE + lane]` for each of its
 * own outputs; the result is that of `output`, if that is below `outputs`.
 */
export function laneSums(
  outputs: number,
  { lanes, threads }: Lanes,
): { readonly code: string; readonly stride: number } {
  const segments = segmentsOf(lanes);
  // An odd distance keeps threads that read different outputs on different banks.
  const stride = lanes | 1;
  const per = Math.ceil(lanes / segments);
  return {
    stride,
    code: /* wgsl */ `
var<workgroup> partial: array<f32, ${outputs * stride}>;
${
  segments === 1
    ? ''
    : `var<workgroup> segments: array<f32, ${outputs * segments}>;
fn gatherSegments(tid: u32) {
  for (var i = tid; i < ${outputs * segments}u; i += ${threads}u) {
    let at = (i / ${segments}u) * ${stride}u + i % ${segments}u;
    var sum = partial[at];
    for (var k = 1u; k < ${per}u; k++) {
      if (i % ${segments}u + k * ${segments}u < ${lanes}u) { sum += partial[at + k * ${segments}u]; }
    }
    segments[i] = sum;
  }
  workgroupBarrier();
}`
}
fn laneSum(output: u32) -> f32 {
  let o = min(output, ${outputs - 1}u);
  ${
    segments === 1
      ? `var sum = partial[o * ${stride}u];
  for (var k = 1u; k < ${lanes}u; k++) { sum += partial[o * ${stride}u + k]; }
  return sum;`
      : `let at = o * ${segments}u;
  return ((segments[at] + segments[at + 1u]) + (segments[at + 2u] + segments[at + 3u])) +
    ((segments[at + 4u] + segments[at + 5u]) + (segments[at + 6u] + segments[at + 7u]));`
  }
}
fn gather(tid: u32) {
  workgroupBarrier();
  ${segments === 1 ? '' : 'gatherSegments(tid);'}
}`,
  };
}

/** The input rows of a workgroup: where each lane's blocks come from, normed first or as they are. */
export interface LaneInput {
  /** Declares `inputAt(row, v)`, workgroup memory, and `blockAt(row, b)`. */
  readonly functions: string;
  /**
   * Statements that make the whole row's norm factor `norm0` … of each of `tile` rows, and, where a lane has one block,
   * hold its values in `values0` …. They hold barriers: uniform control flow.
   */
  readonly start: string;
  /** WGSL of the prepared input of tile row `t` and the lane's block `b`. */
  prepared(t: number, b: string): string;
}

/**
 * @param given.row WGSL of the input row of tile row `t`
 * @param given.norm bound already as `normWeight`, array<f32>
 */
export function laneInput(given: {
  readonly lanes: Lanes;
  readonly blocks: number;
  readonly columns: number;
  readonly tile: number;
  readonly row: (t: number) => string;
  readonly norm?: RowNorm;
}): LaneInput {
  const { lanes, columns, tile, row, norm } = given;
  const { lanes: width, each, threads } = lanes;
  const blockAt = /* wgsl */ `
fn blockAt(row: u32, b: u32) -> array<vec4f, 8> {
  return array<vec4f, 8>(${Array.from({ length: 8 }, (_, k) => `inputAt(row, 8u * b + ${k}u)`).join(', ')});
}`;
  const single = each === 1;
  const held = unrolled(tile, (t) => `  let values${t} = blockAt(${row(t)}, lane);`);
  if (norm === undefined) {
    return {
      functions: blockAt,
      start: single ? held : '',
      prepared: (t, b) => (single ? `prepare(values${t})` : `prepare(blockAt(${row(t)}, ${b}))`),
    };
  }
  const functions = /* wgsl */ `${blockAt}
var<workgroup> squares: array<f32, ${tile * threads}>;
fn squareOf(v: array<vec4f, 8>) -> f32 {
  let low = fma(v[3], v[3], fma(v[2], v[2], fma(v[1], v[1], v[0] * v[0])));
  let high = fma(v[7], v[7], fma(v[6], v[6], fma(v[5], v[5], v[4] * v[4])));
  let sum = low + high;
  return (sum.x + sum.y) + (sum.z + sum.w);
}
fn normFactor(first: u32) -> f32 {
  var sum = vec4f();
  var i = 0u;
  for (; i + 4u <= ${width}u; i += 4u) {
    sum += vec4f(squares[first + i], squares[first + i + 1u], squares[first + i + 2u], squares[first + i + 3u]);
  }
  var rest = (sum.x + sum.y) + (sum.z + sum.w);
  for (; i < ${width}u; i++) { rest += squares[first + i]; }
  return inverseSqrt(rest / ${f32Literal(columns)} + ${f32Literal(norm.epsilon)});
}
fn normWeightAt(i: u32) -> f32 { ${columns % 32 === 0 ? 'return normWeight[i];' : `if (i >= ${columns}u) { return 0.0; } return normWeight[i];`} }
fn normed(v: array<vec4f, 8>, factor: f32, b: u32) -> array<vec4f, 8> {
  let i = 32u * b;
  return array<vec4f, 8>(${Array.from({ length: 8 }, (_, k) => `v[${k}] * factor * vec4f(${[0, 1, 2, 3].map((c) => `normWeightAt(i + ${4 * k + c}u)`).join(', ')})`).join(',\n    ')});
}`;
  const squares = single
    ? `${held}
${unrolled(tile, (t) => `  squares[${t * threads}u + tid] = squareOf(values${t});`)}`
    : unrolled(
        tile,
        (t) => `  {
    var sum = 0.0;
    for (var b = lane; b < ${given.blocks}u; b += ${width}u) { sum += squareOf(blockAt(${row(t)}, b)); }
    squares[${t * threads}u + tid] = sum;
  }`,
      );
  return {
    functions,
    start: `${squares}
  workgroupBarrier();
${unrolled(tile, (t) => `  let norm${t} = normFactor(${t * threads}u + team * ${width}u);`)}`,
    prepared: (t, b) => `prepare(normed(${single ? `values${t}` : `blockAt(${row(t)}, ${b})`}, norm${t}, ${b}))`,
  };
}

/** Binds the weight of a norm as {@link laneInput} reads it. */
export function bindNorm(text: KernelText, norm: RowNorm | undefined): void {
  if (norm !== undefined) text.vector(norm.weight, 'normWeight');
}

/** Input blocks of a weight's rows. */
export function blocksOf(weight: Weight): number {
  return Math.ceil(columnsOf(weight) / 32);
}
