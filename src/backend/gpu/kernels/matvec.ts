/**
 * Products of a few run rows (T = 1…64, and the head): a workgroup takes a few weight rows, its lanes split the columns by
 * blocks of 32, and the lanes' sums are added as a tree. A row's sums have one order, whatever rows are beside it: the tile
 * of run rows that share a decoded block changes nothing but who computes them.
 */

import type { Weight } from '../../../model/weights.ts';
import type { Mode } from '../../kernel.ts';
import type { Binding, Builder, Dispatch, RunShape } from '../builder.ts';
import { columnsOf, KernelText, rowReader, rowsOf, spread, treeSum, unrolled } from './kernel-text.ts';

/** Run rows that a decoded block is multiplied with; the least that holds a run's rows is taken. */
const TILES = [1, 4, 8] as const;

/** Vectors in workgroup memory: the 16 KiB that every device has. */
const STAGED = 1024;

/** Threads that share a weight row; part of the order of sums, so it depends on the columns alone. */
export function lanesOf(blocks: number): number {
  return blocks % 16 === 0 || blocks > 40 ? 16 : 8;
}

export interface MatVec {
  readonly label: string;
  readonly input: string;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row; the weights' rows stand one after the other in it. */
  readonly outputWidth: number;
  /** Where in an output row the first weight's rows begin; 0 if it is not said. */
  readonly outputOffset?: number;
  /** Matrices of the same columns. */
  readonly weights: readonly { readonly weight: Weight; readonly bias?: string }[];
  /** Whether the rows are those whose logits are wanted. */
  readonly wanted: boolean;
}

/** Emits a dispatch for each size of tile; one of them serves a run. */
export function emitMatVec(builder: Builder, mode: Mode, product: MatVec): void {
  for (const [index, tile] of TILES.entries()) {
    const { code, bindings, groups } = matVecKernel(builder, product, tile);
    const least = index === 0 ? 0 : (TILES[index - 1] as number);
    const most = index === TILES.length - 1 ? Number.POSITIVE_INFINITY : tile;
    const [x, y] = spread(groups);
    builder.dispatch(mode, {
      label: product.label,
      code,
      bindings,
      workgroups(run: RunShape) {
        const count = product.wanted ? run.wanted : run.rows;
        return count > least && count <= most ? [x, y, Math.ceil(count / tile)] : [0, 0, 0];
      },
    });
  }
}

function matVecKernel(
  builder: Builder,
  { input, output, outputWidth, outputOffset = 0, weights, wanted }: MatVec,
  tile: number,
): Pick<Dispatch, 'code' | 'bindings'> & { readonly groups: number } {
  const columns = columnsOf((weights[0] as { weight: Weight }).weight);
  const blocks = Math.ceil(columns / 32);
  const lanes = lanesOf(blocks);
  const total = weights.reduce((sum, { weight }) => sum + rowsOf(weight), 0);
  // Small outputs are spread thin, so that every processor of a large GPU has some.
  const threads = total < 1024 ? 64 : 128;
  const each = tile === 1 && total >= 8192 ? 2 : 1;
  const teams = threads / lanes;
  const groupRows = teams * each;
  const staged = Math.min(STAGED / 8 / tile, Math.ceil(blocks / 16) * 16);

  const reader = rowReader(columns);
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', reader.type)
    .bind(output, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  let firstGroup = 0;
  let firstRow = outputOffset;
  const segments = weights.map(({ weight, bias }) => {
    const matrix = text.matrix(weight);
    const biasName = bias === undefined ? undefined : `bias${text.bindings.length}`;
    if (bias !== undefined) text.vector(bias, biasName as string);
    const rows = rowsOf(weight);
    const segment = { matrix, bias: biasName, rows, firstGroup, firstRow };
    firstGroup += Math.ceil(rows / groupRows);
    firstRow += rows;
    return segment;
  });
  type Segment = (typeof segments)[number];
  /** Code for the segment that a workgroup is in. */
  const choose = (code: (segment: Segment) => string) =>
    segments
      .map((segment, i) => {
        const end = segments[i + 1]?.firstGroup;
        return `${i === 0 ? '' : ' else '}${end === undefined ? '' : `if (group < ${end}u) `}{\n${code(segment)}\n}`;
      })
      .join('');

  const term = (t: number, k: string) => `      {
        let v = staged[(${8 * t}u + ${k}) * ${staged}u + (s ^ ${k})];
${unrolled(each, (r) => `        a${r}_${t} = fma(d${r}[${k}], v, a${r}_${t});`)}
      }`;
  const runRow = wanted ? `step[${builder.step.wanted}u + first + t]` : 'first + t';
  const count = wanted ? builder.step.wantedCount : builder.step.rows;
  const body = /* wgsl */ `
${reader.code}
// Input of the tile, and in the end each lane's sums.
var<workgroup> staged: array<vec4f, ${Math.max(tile * 8 * staged, groupRows * tile * lanes)}>;

fn sumOf(v: vec4f) -> f32 { return (v.x + v.y) + (v.z + v.w); }

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let group = wg.y * ${spread(firstGroup)[0]}u + wg.x;
  let first = wg.z * ${tile}u;
  let count = step[${count}u];
  if (group >= ${firstGroup}u || first >= count) { return; }
  let lane = tid % ${lanes}u;
  let team = tid / ${lanes}u;
${unrolled(each, (r) => unrolled(tile, (t) => `  var a${r}_${t} = vec4f();`))}
  for (var chunk = 0u; chunk < ${blocks}u; chunk += ${staged}u) {
    ${blocks > staged ? 'workgroupBarrier();' : ''}
    // [tile][8][blocks]: lanes read neighbours; the exclusive or keeps the writes apart, too.
    for (var i = tid; i < ${tile * 8 * staged}u; i += ${threads}u) {
      let t = i / ${8 * staged}u;
      let v = i % ${8 * staged}u;
      var value = vec4f();
      if (first + t < count) { value = inputAt(${runRow}, chunk * 8u + v); }
      staged[(t * 8u + v % 8u) * ${staged}u + ((v / 8u) ^ (v % 8u))] = value;
    }
    workgroupBarrier();
    for (var s = lane; s < ${staged}u; s += ${lanes}u) {
      ${blocks % staged === 0 ? '' : `if (chunk + s >= ${blocks}u) { break; }`}
      ${choose(
        ({ matrix, rows, firstGroup: start }) => `
${unrolled(each, (r) => `      ${tile === 8 ? 'var' : 'let'} d${r} = ${matrix.decode}(min((group - ${start}u) * ${groupRows}u + team * ${each}u + ${r}u, ${rows - 1}u) * ${matrix.rowWords}u, chunk + s);`)}
${
  tile === 8
    ? // Written out, 64 of them are slow to compile; compilers unroll a loop of eight.
      `for (var k = 0u; k < 8u; k++) {\n${unrolled(tile, (t) => term(t, 'k'))}\n}`
    : unrolled(tile, (t) => unrolled(8, (k) => term(t, `${k}u`)))
}`,
      )}
    }
  }
  workgroupBarrier();
${unrolled(each, (r) =>
  unrolled(tile, (t) => `  staged[((team * ${each}u + ${r}u) * ${tile}u + ${t}u) * ${lanes}u + lane] = a${r}_${t};`),
)}
  workgroupBarrier();
  for (var i = tid; i < ${groupRows * tile}u; i += ${threads}u) {
    let sum = ${treeSum(Array.from({ length: lanes }, (_, lane) => `sumOf(staged[i * ${lanes}u + ${lane}u])`))};
    let t = first + i % ${tile}u;
    if (t >= count) { continue; }
    ${choose(
      ({ rows, bias, firstGroup: start, firstRow: offset }) => `
      let row = (group - ${start}u) * ${groupRows}u + i / ${tile}u;
      if (row < ${rows}u) { y[t * ${outputWidth}u + ${offset}u + row] = sum${bias === undefined ? '' : ` + ${bias}[row]`}; }`,
    )}
  }
}`;
  return { code: text.code(body), bindings: text.bindings, groups: firstGroup };
}
