/**
 * Products of a few run rows (T = 1…64, and the head), several matrices side by side, with the norm before and the sum
 * after them: `lane-product.ts` says how. A row's sums have one order, whatever rows are beside it: the tile of run rows
 * that share a workgroup's weights changes nothing but who computes them.
 */

import type { RowNorm, ValueName } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Mode } from '../../kernel.ts';
import type { Binding, Builder, Dispatch, RunShape } from '../builder.ts';
import { columnsOf, KernelText, rowReader, rowsOf, spread, unrolled } from './kernel-text.ts';
import { bindNorm, blocksOf, type Encoding, laneInput, laneSums, lanesOf } from './lane-product.ts';

/** Run rows that share a workgroup's weights; the least that holds a run's rows is taken. */
const TILES: Readonly<Record<Encoding['id'], readonly number[]>> = { int8: [1, 4, 8], f32: [1, 4] };

/** f32 in workgroup memory for partial sums: with the norm's squares beside them less than the 16 KiB that every device has. */
const PARTIALS = 2560;

export interface MatVec {
  readonly label: string;
  readonly encoding: Encoding;
  readonly input: ValueName;
  readonly norm?: RowNorm;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row; the weights' rows stand one after the other in it. */
  readonly outputWidth: number;
  /** Where in an output row the first weight's rows begin; 0 if it is not said. */
  readonly outputOffset?: number;
  /** Matrices of the same columns. */
  readonly weights: readonly { readonly weight: Weight; readonly bias?: string }[];
  /** A value of the output's width that is added. */
  readonly add?: ValueName;
  /** Whether the rows are those whose logits are wanted. */
  readonly wanted: boolean;
}

/** Emits a dispatch for each size of tile; one of them serves a run. */
export function emitMatVec(builder: Builder, mode: Mode, product: MatVec): void {
  const tiles = TILES[product.encoding.id];
  for (const [index, tile] of tiles.entries()) {
    const { code, bindings, groups } = matVecKernel(builder, product, tile);
    const least = index === 0 ? 0 : (tiles[index - 1] as number);
    const most = index === tiles.length - 1 ? Number.POSITIVE_INFINITY : tile;
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

/**
 * Weight rows of a team: many are many loads on their way at once and few copies of the input's making, but small outputs
 * are spread thin, so that every processor of a large GPU has some. A tile's partial sums have to fit.
 */
function teamRows(total: number, tile: number, threads: number): number {
  const wished = total >= 4096 ? 8 : total >= 1024 ? 4 : 1;
  let rows = wished;
  while (rows > 1 && rows * tile * (threads + 1) > PARTIALS) rows /= 2;
  return rows;
}

function matVecKernel(
  builder: Builder,
  { encoding, input, norm, output, outputWidth, outputOffset = 0, weights, add, wanted }: MatVec,
  tile: number,
): Pick<Dispatch, 'code' | 'bindings'> & { readonly groups: number } {
  const first = (weights[0] as { weight: Weight }).weight;
  const columns = columnsOf(first);
  const blocks = blocksOf(first);
  const lanes = lanesOf(blocks);
  const { threads, each, teams } = lanes;
  const total = weights.reduce((sum, { weight }) => sum + rowsOf(weight), 0);
  const own = teamRows(total, tile, threads);
  const groupRows = teams * own;

  const reader = rowReader(columns);
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', reader.type)
    .bind(output, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  if (add !== undefined) text.bind({ kind: 'value', name: add, access: 'read' }, 'residual', 'f32');
  bindNorm(text, norm);
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

  const at = builder.step;
  const count = wanted ? at.wantedCount : at.rows;
  // Beyond the run's rows the last one is read again, and nobody keeps what comes of it.
  const inputRow = (t: number) => {
    const row = `min(first + ${t}u, count - 1u)`;
    return wanted ? `step[${at.wanted}u + ${row}]` : row;
  };
  const laneRows = laneInput({ lanes, blocks, columns, tile, row: (t) => `row${t}`, norm });
  const sums = laneSums(teams * own * tile, lanes);
  const teamRow = (segment: Segment, r: number) =>
    `min((group - ${segment.firstGroup}u) * ${groupRows}u + team * ${own}u + ${r}u, ${segment.rows - 1}u)`;
  const load = (b: string) => `
${unrolled(own, (r) => `  var w${r}: ${encoding.weightType};`)}
${choose((segment) => unrolled(own, (r) => `  w${r} = ${encoding.load(segment.matrix, `${teamRow(segment, r)} * ${segment.matrix.rowWords}u`, b)};`))}`;
  const multiply = (b: string) =>
    unrolled(
      tile,
      (t) => `  {
    let x = ${laneRows.prepared(t, b)};
${unrolled(own, (r) => `    a${r}_${t} += dotBlock(w${r}, x);`)}
  }`,
    );
  const body = /* wgsl */ `
${reader.code}
${encoding.helpers}
${laneRows.functions}
${sums.code}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let group = wg.y * ${spread(firstGroup)[0]}u + wg.x;
  let first = wg.z * ${tile}u;
  let count = step[${count}u];
  if (group >= ${firstGroup}u || first >= count) { return; }
  let lane = tid % ${lanes.lanes}u;
  let team = tid / ${lanes.lanes}u;
${unrolled(tile, (t) => `  let row${t} = ${inputRow(t)};`)}
${unrolled(own, (r) => unrolled(tile, (t) => `  var a${r}_${t} = 0.0;`))}
${
  each === 1
    ? `${load('lane')}
${laneRows.start}
${multiply('lane')}`
    : `${laneRows.start}
  for (var i = 0u; i < ${each}u; i++) {
    let b = lane + i * ${lanes.lanes}u;
    if (b < ${blocks}u) {
${load('b')}
${multiply('b')}
    }
  }`
}
${unrolled(own, (r) => unrolled(tile, (t) => `  partial[((team * ${own}u + ${r}u) * ${tile}u + ${t}u) * ${sums.stride}u + lane] = a${r}_${t};`))}
  gather(tid);
  for (var i = tid; i < ${groupRows * tile}u; i += ${threads}u) {
    let sum = laneSum(i);
    let t = first + i % ${tile}u;
    if (t >= count) { continue; }
    ${choose(
      ({ rows, bias, firstGroup: start, firstRow: offset }) => `
      let row = (group - ${start}u) * ${groupRows}u + i / ${tile}u;
      if (row < ${rows}u) {
        let place = t * ${outputWidth}u + ${offset}u + row;
        y[place] = sum${bias === undefined ? '' : ` + ${bias}[row]`}${add === undefined ? '' : ' + residual[place]'};
      }`,
    )}
  }
}`;
  return { code: text.code(body), bindings: text.bindings, groups: firstGroup };
}
