/**
 * Products of many run rows with few weight rows, as a router's: there are too few tiles to keep a large device busy, so the
 * columns are cut into parts, whose number they alone decide, and the parts' sums are added in order.
 */

import type { ValueName } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Binding, Builder } from '../builder.ts';
import { columnsOf, KernelText, rowReader, rowsOf } from './kernel-text.ts';
import { TILE_ROWS, tileKernel } from './tiles.ts';

/** Run rows of a tile. */
const HEIGHT = 32;
const THREADS = 256;
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
}

export function emitTiledSplit(builder: Builder, product: SplitProduct): void {
  const { label, input, output, outputWidth, weight } = product;
  const rows = rowsOf(weight);
  const reader = rowReader(columnsOf(weight));
  const blocks = Math.ceil(columnsOf(weight) / 32);
  const parts = partsOf(blocks);
  const each = Math.ceil(blocks / parts);
  const sums = `${label} parts`;
  builder.declareBuffer(sums, parts * builder.rows * rows * 4);
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', reader.type)
    .bind({ kind: 'buffer', name: sums, access: 'write' }, 'sums', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const matrix = text.matrix(weight);
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${rows}u) { sums[(wg.z * ${builder.rows}u + top + t) * ${rows}u + row] = s${j}; }
      }`;
  const code = tileKernel({
    text,
    height: HEIGHT,
    blocks,
    range: [`wg.z * ${each}u`, `min((wg.z + 1u) * ${each}u, ${blocks}u)`],
    functions: reader.code,
    start: `
  let first = wg.x * ${TILE_ROWS}u;
  let top = wg.y * ${HEIGHT}u;
  if (top >= step[${builder.step.rows}u]) { return; }
  let count = min(step[${builder.step.rows}u] - top, ${HEIGHT}u);`,
    inputRow: 'top + t',
    decode: (store) => store(matrix, `min(first + tid, ${rows - 1}u)`),
    write: [0, 1, 2, 3].map(put).join('\n'),
  });
  builder.dispatch('prompt', {
    label,
    code,
    bindings: text.bindings,
    workgroups: (run) => [Math.ceil(rows / TILE_ROWS), Math.ceil(run.rows / HEIGHT), parts],
  });
  const sum = new KernelText()
    .bind({ kind: 'buffer', name: sums, access: 'read' }, 'sums', 'f32')
    .bind(output, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  builder.dispatch('prompt', {
    label: `${label} sum`,
    code: sum.code(/* wgsl */ `
@compute @workgroup_size(${THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  let t = id.x / ${rows}u;
  let row = id.x % ${rows}u;
  if (t >= step[${builder.step.rows}u]) { return; }
  var sum = 0.0;
  for (var part = 0u; part < ${parts}u; part++) { sum += sums[part * ${builder.rows * rows}u + id.x]; }
  y[t * ${outputWidth}u + row] = sum;
}`),
    bindings: sum.bindings,
    workgroups: (run) => [Math.ceil((run.rows * rows) / THREADS), 1, 1],
  });
}
