/**
 * Products of many run rows with few weight rows, as a router's: there are too few tiles to keep a large device busy, so the
 * columns are cut into parts, whose number they alone decide, and the parts' sums are added in order.
 */

import type { ValueName } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Binding, Builder, Dispatch } from '../builder.ts';
import { columnsOf, KernelText, rowReader, rowsOf } from './kernel-text.ts';
import { TILE_ROWS, tileKernel } from './tiles.ts';

/** Run rows of a tile, by preference: the higher one reads less, where there are workgroups enough for a large device. */
const HEIGHTS = [64, 32] as const;
const LOWEST = HEIGHTS[1];
const ENOUGH = 512;
const THREADS = 64;
/** Blocks of 32 columns of a part, at least. */
const LEAST_BLOCKS = 4;
const MOST_PARTS = 16;

export function partsOf(blocks: number): number {
  return Math.max(1, Math.min(MOST_PARTS, Math.floor(blocks / LEAST_BLOCKS)));
}

export interface SplitProduct {
  readonly label: string;
  readonly input: ValueName;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row, of which the weight's rows are the first. */
  readonly outputWidth: number;
  readonly weight: Weight;
  /** [rows of the weight] */
  readonly bias?: string;
}

/** The parts' sums: [parts][rows of the builder][rows of the weight] f32. */
interface Parts {
  readonly name: string;
  readonly count: number;
}

export function emitTiledSplit(builder: Builder, product: SplitProduct): void {
  const { label, weight } = product;
  const parts: Parts = { name: `${label} parts`, count: partsOf(Math.ceil(columnsOf(weight) / 32)) };
  builder.declareBuffer(parts.name, parts.count * builder.rows * rowsOf(weight) * 4);
  const groups = (height: number, rows: number) =>
    [Math.ceil(rowsOf(weight) / TILE_ROWS), Math.ceil(rows / height), parts.count] as const;
  const heightOf = (rows: number) =>
    HEIGHTS.find((height) => groups(height, rows).reduce((all, n) => all * n) >= ENOUGH) ?? LOWEST;
  for (const height of HEIGHTS) {
    // More rows never choose a lower tile.
    if (height > heightOf(builder.rows)) continue;
    builder.dispatch('prompt', {
      label,
      ...partKernel(builder, product, { parts, height }),
      workgroups: (run) => (heightOf(run.rows) === height ? groups(height, run.rows) : [0, 0, 0]),
    });
  }
  emitSum(builder, product, parts);
}

function partKernel(
  builder: Builder,
  { input, weight }: SplitProduct,
  { parts, height }: { readonly parts: Parts; readonly height: (typeof HEIGHTS)[number] },
): Pick<Dispatch, 'code' | 'bindings'> {
  const rows = rowsOf(weight);
  const reader = rowReader(columnsOf(weight));
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', reader.type)
    .bind({ kind: 'buffer', name: parts.name, access: 'write' }, 'sums', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const matrix = text.matrix(weight);
  const each = Math.ceil(matrix.blocks / parts.count);
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${rows}u) { sums[(wg.z * ${builder.rows}u + top + t) * ${rows}u + row] = s${j}; }
      }`;
  const code = tileKernel({
    text,
    height,
    blocks: matrix.blocks,
    range: [`wg.z * ${each}u`, `min((wg.z + 1u) * ${each}u, ${matrix.blocks}u)`],
    functions: reader.code,
    start: `
  let first = wg.x * ${TILE_ROWS}u;
  let top = wg.y * ${height}u;
  if (top >= step[${builder.step.rows}u]) { return; }
  let count = min(step[${builder.step.rows}u] - top, ${height}u);`,
    inputRow: 'top + t',
    decode: (store) => store(matrix, `min(first + tid, ${rows - 1}u)`),
    write: [0, 1, 2, 3].map(put).join('\n'),
  });
  return { code, bindings: text.bindings };
}

function emitSum(builder: Builder, { label, output, outputWidth, weight, bias }: SplitProduct, parts: Parts): void {
  const rows = rowsOf(weight);
  const text = new KernelText()
    .bind({ kind: 'buffer', name: parts.name, access: 'read' }, 'sums', 'f32')
    .bind(output, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  if (bias !== undefined) text.vector(bias, 'bias');
  const code = text.code(/* wgsl */ `
@compute @workgroup_size(${THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  let t = id.y;
  let row = id.x;
  if (t >= step[${builder.step.rows}u] || row >= ${rows}u) { return; }
  var sum = 0.0;
  for (var part = 0u; part < ${parts.count}u; part++) {
    sum += sums[(part * ${builder.rows}u + t) * ${rows}u + row];
  }
  y[t * ${outputWidth}u + row] = sum${bias === undefined ? '' : ' + bias[row]'};
}`);
  builder.dispatch('prompt', {
    label: `${label} sum`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [Math.ceil(rows / THREADS), run.rows, 1],
  });
}
