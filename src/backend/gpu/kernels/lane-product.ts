/**
 * What the products of step rows share. Each of a workgroup's lanes owns a block or two of 32 columns, whose input
 * `lane-staging.ts` brings it; it multiplies them with several weight rows, and sums go over the lanes in an order that depends
 * on the number of blocks alone.
 */

import type { Weight } from '../../../model/weights.ts';
import type { Tolerance } from '../../kernel.ts';
import { gpuFormat } from '../formats/index.ts';
import { INT8_FEATURE, int8Helpers } from '../int8.ts';
import { columnsOf, type MatrixText } from './kernel-text.ts';

/** What the input of a product is turned into. */
export interface Encoding {
  readonly id: 'f32' | 'int8';
  readonly tolerance: Tolerance;
  /** Blocks that a lane owns side by side, at the most; what two of them share is decoded once. */
  readonly span: 1 | 2;
  /** Blocks that are in work at once, at the most: what is staged of them shares the 16 KiB that every device has. */
  readonly mostBlocks: number;
  /** Blocks of weights that a lane loads at once, at the most. */
  readonly mostLoads: number;
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
  mostLoads: 2,
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
  mostLoads: 8,
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
const threadsFor = (outputs: number, rounds: number) => (outputs >= 1024 || rounds > 1 ? 256 : 64);

/** @param outputs weight rows of all workgroups */
export function lanesOf(blocks: number, outputs: number, encoding: Encoding): Lanes {
  const { rounds, lanes, span } = roundsOf(blocks, encoding.mostBlocks, encoding);
  let threads = threadsFor(outputs, rounds);
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
export const ENOUGH_GROUPS = 256;
/** Turns of a workgroup, at the most: what staging its input costs is little by then. */
export const MOST_TURNS = 8;

/** What a workgroup makes. */
export interface Turns {
  /** Weight rows of a team in a turn. */
  readonly rows: number;
  readonly turns: number;
}

/**
 * Few outputs are spread over many workgroups; of many each takes as many as it can load at once, or several turns with the
 * input that it staged.
 * @param outputs weight rows of all workgroups
 * @param mostBlocks of a lane in a turn; half as many where the next turn's are on their way meanwhile
 */
export function turnsOf(outputs: number, { teams, rounds, span }: Lanes, mostBlocks: number): Turns {
  const most = Math.max(1, Math.floor(mostBlocks / span));
  const rows = Math.max(1, Math.min(most, Math.ceil(outputs / (teams * ENOUGH_GROUPS))));
  const turnsWith = (own: number) => Math.floor(outputs / (teams * own * ENOUGH_GROUPS));
  if (rounds > 1 || turnsWith(rows) < 2) return { rows, turns: 1 };
  const half = Math.max(1, most >> 1);
  return { rows: half, turns: Math.min(MOST_TURNS, turnsWith(half)) };
}

/** How the partial sums of a workgroup's lanes become outputs; a team makes so many in a turn, of one or more parts each. */
export interface Sums {
  /** u32 of `scratch`. */
  readonly words: number;
  /** Declares what `total` calls. */
  readonly code: string;
  /**
   * Statements that add up over lanes and then do what `each` says with every output of the workgroup, whose number (team by
   * team) and parts it is given. They hold barriers; `each` must not.
   * @param values WGSL of a lane's partial sums: by part, of each of the team's outputs
   */
  total(values: readonly (readonly string[])[], each: (output: string, parts: readonly string[]) => string): string;
  /** Statements between one turn's `total` and the next one's. */
  readonly again: string;
  /** Of outputs that one known thread does: whether it is this one, and the output's number. Absent: any may. */
  readonly writer?: { readonly is: string; readonly output: string };
}

/**
 * WGSL of sums over lanes in `scratch`, in an order that depends on the number of lanes alone.
 * @param perTeam outputs of a team
 */
export function laneSums(perTeam: number, { lanes, teams, threads }: Lanes, parts = 1): Sums {
  // Partial sums that are left of an output before the last round.
  const segments = lanes >= 24 ? 8 : 1;
  // An odd distance keeps threads that read different outputs on different banks.
  const stride = lanes | 1;
  const per = Math.ceil(lanes / segments);
  const outputs = teams * perTeam;
  const sums = outputs * parts;
  const part = (i: string) => `bitcast<f32>(scratch[${i}])`;
  const put = (team: string, k: number, index: number) => `((${team} * ${perTeam}u + ${k}u) * ${parts}u + ${index}u)`;
  const names = Array.from({ length: parts }, (_, index) => `sum${index}`);
  const functions =
    segments === 1
      ? /* wgsl */ `
fn gather(tid: u32) { workgroupBarrier(); }
fn laneSum(output: u32) -> f32 {
  let at = output * ${stride}u;
  var sum = ${part('at')};
  for (var k = 1u; k < ${lanes}u; k++) { sum += ${part('at + k')}; }
  return sum;
}`
      : /* wgsl */ `
var<workgroup> segments: array<f32, ${sums * segments}>;
fn gather(tid: u32) {
  workgroupBarrier();
  for (var i = tid; i < ${sums * segments}u; i += ${threads}u) {
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
}`;
  return {
    words: sums * stride,
    again: segments === 1 ? '  workgroupBarrier();' : '',
    code: `fn putPart(output: u32, lane: u32, value: f32) { scratch[output * ${stride}u + lane] = bitcast<u32>(value); }${functions}`,
    total: (values, each) => `  if (team < ${teams}u) {
${values
  .flatMap((own, index) => own.map((value, k) => `    putPart(${put('team', k, index)}, lane, ${value});`))
  .join('\n')}
  }
  gather(tid);
  for (var i = tid; i < ${outputs}u; i += ${threads}u) {
${names.map((name, index) => `    let ${name} = laneSum(i * ${parts}u + ${index}u);`).join('\n')}
${each('i', names)}
  }`,
  };
}

/** Declares the workgroup memory that staging and sums take in turns. */
export function scratchCode(...users: readonly { readonly words: number }[]): string {
  return `var<workgroup> scratch: array<u32, ${Math.max(1, ...users.map(({ words }) => words))}>;`;
}

/** Input blocks of a weight's rows. */
export function blocksOf(weight: Weight): number {
  return Math.ceil(columnsOf(weight) / 32);
}
