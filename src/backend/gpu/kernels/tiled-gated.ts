/** Gate and up of prompt rows become one: tiles of 32 rows of each of two matrices (`tiles.ts`). */

import type { ValueName } from '../../../model/graph.ts';
import type { Activation } from '../../../model/spec.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Binding, Builder } from '../builder.ts';
import { gluCode } from './activation.ts';
import { columnsOf, KernelText, rowReader, rowsOf } from './kernel-text.ts';
import { TILE_ROWS, tileKernel } from './tiles.ts';

/** Run rows of a tile. */
const HEIGHT = 64;

export interface TiledGated {
  readonly label: string;
  readonly input: ValueName;
  readonly gate: Weight;
  readonly up: Weight;
  readonly activation: Activation;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row, and where in it the products begin. */
  readonly outputWidth: number;
  readonly outputOffset: number;
  /** f32 that are written: as many as the matrices have rows, or more, which are zero. */
  readonly wide: number;
}

export function emitTiledGated(builder: Builder, gated: TiledGated): void {
  const { label, input, activation, output, outputWidth, outputOffset, wide } = gated;
  const rows = rowsOf(gated.gate);
  const reader = rowReader(columnsOf(gated.gate));
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', reader.type)
    .bind(output, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const gate = text.matrix(gated.gate);
  const up = text.matrix(gated.up);
  const half = TILE_ROWS / 2;
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${wide}u) { y[out + row] = select(0.0, glu(s${j}, s${j + 2}), row < ${rows}u); }
      }`;
  const code = tileKernel({
    text,
    height: HEIGHT,
    blocks: gate.blocks,
    functions: reader.code + gluCode(activation),
    start: `
  let top = wg.y * ${HEIGHT}u;
  if (top >= step[${builder.step.rows}u]) { return; }
  let count = min(step[${builder.step.rows}u] - top, ${HEIGHT}u);
  let first = wg.x * ${half}u;`,
    inputRow: 'top + t',
    decode: (store) => `
      if (tid < ${half}u) {${store(gate, `min(first + tid, ${rows - 1}u)`)}
      } else {${store(up, `min(first + tid - ${half}u, ${rows - 1}u)`)}
      }`,
    write: `      let out = (top + t) * ${outputWidth}u + ${outputOffset}u;
${put(0)}
${put(1)}`,
  });
  const across = Math.ceil(wide / half);
  builder.dispatch('prompt', {
    label,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, Math.ceil(run.rows / HEIGHT), 1],
  });
}
