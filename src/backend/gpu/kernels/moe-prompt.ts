/**
 * Experts of many rows: (row, rank) pairs are sorted by expert on the device, the tiles of each expert are multiplied, and
 * each row's results are summed in rank order. Where a pair stands among its expert's changes no bit of what is made of it.
 */

import { gluCode } from './activation.ts';
import { columnsOf, KernelText, rowReader } from './kernel-text.ts';
import { emitTiled } from './linear.ts';
import { buffer, gateScale, type MoeLayer, value } from './moe-layer.ts';
import { emitCombine, emitSort, type Sorted } from './moe-sort.ts';
import { emitTiledGated } from './tiled-gated.ts';
import { TILE_ROWS, tileKernel } from './tiles.ts';

/** Pairs of a tile: an expert has a few dozen of a usual batch. */
const HEIGHT = 32;

export function emitPromptExperts(layer: MoeLayer): void {
  const { operation, builder, hidden } = layer;
  const { moe, prefix } = operation;
  builder.declareBuffer(`${prefix}.made`, builder.rows * moe.used * hidden * 4);
  const sorted = emitSort(layer, { height: HEIGHT });
  emitIn(layer, sorted);
  if (moe.shared !== undefined) emitSharedIn(layer);
  emitOut(layer, sorted);
  if (moe.shared !== undefined) emitSharedOut(layer);
  emitCombine(layer, 'prompt');
}

/** Gate and up of sorted pairs become one: 32 rows of each matrix a tile. */
function emitIn(layer: MoeLayer, sorted: Sorted): void {
  const { operation, builder, route, routeWidth, inner, innerWidth, slot, bank } = layer;
  const { moe, prefix, input } = operation;
  const { used, biases, router } = moe;
  const rows = moe.inner;
  const reader = rowReader(columnsOf(bank.gate));
  const text = new KernelText()
    .bind(value(input, 'read'), 'x', reader.type)
    .bind(buffer(inner, 'write'), 'inner', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32')
    .bind(buffer(sorted.name, 'read'), 'sorted', 'u32');
  bank.bind(text);
  if (biases) text.vector(`${prefix}.gate.bias`, 'gateBias').vector(`${prefix}.up.bias`, 'upBias');
  if (router.weighsInput) text.bind(buffer(route, 'read'), 'route', 'u32');
  const gate = text.matrix(bank.gate);
  const up = text.matrix(bank.up);
  const scale = gateScale(layer, text, 'expert');
  const half = TILE_ROWS / 2;
  /** A product as what is made of it takes it: of the weighed input, with its bias. */
  const productOf = (product: string, bias: string) => {
    const weighed = router.weighsInput ? `${product} * weight` : product;
    return biases ? `${weighed} + ${bias}[expert * ${rows}u + min(row, ${rows - 1}u)]` : weighed;
  };
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${slot}u) { inner[out + row] = select(0.0, glu(${productOf(`s${j}${scale}`, 'gateBias')}, ${productOf(`s${j + 2}`, 'upBias')}), row < ${rows}u); }
      }`;
  const code = tileKernel({
    text,
    height: HEIGHT,
    blocks: gate.blocks,
    functions: reader.code + gluCode(moe.activation),
    start: `${sorted.tile}${bank.find}\n  let first = wg.x * ${half}u;`,
    inputRow: `sorted[${sorted.order}u + place + t] / ${used}u`,
    decode: (store) => `
      if (tid < ${half}u) {${store(gate, `at * ${rows}u + min(first + tid, ${rows - 1}u)`)}
      } else {${store(up, `at * ${rows}u + min(first + tid - ${half}u, ${rows - 1}u)`)}
      }`,
    write: `      let pair = sorted[${sorted.order}u + place + t];
      let out = (pair / ${used}u) * ${innerWidth}u + (pair % ${used}u) * ${slot}u;
${router.weighsInput ? `      let weight = bitcast<f32>(route[(pair / ${used}u) * ${routeWidth}u + ${used}u + pair % ${used}u]);` : ''}
${put(0)}
${put(1)}`,
  });
  const across = slot / half;
  builder.dispatch('prompt', {
    label: `${prefix} gate and up`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, sorted.tiles(run), 1],
  });
}

/** The same of the shared expert, for every row. */
function emitSharedIn({ operation, builder, inner, innerWidth, slot, sharedSlot }: MoeLayer): void {
  const { moe, prefix, input } = operation;
  emitTiledGated(builder, {
    label: `${prefix}.shared gate and up`,
    input,
    gate: builder.weight(`${prefix}.shared.gate`),
    up: builder.weight(`${prefix}.shared.up`),
    activation: moe.activation,
    output: buffer(inner, 'write'),
    outputWidth: innerWidth,
    outputOffset: moe.used * slot,
    wide: sharedSlot,
  });
}

/** down · inner of sorted pairs: [pairs, hidden] in the order of pairs. */
function emitOut(layer: MoeLayer, sorted: Sorted): void {
  const { operation, builder, hidden, inner, innerWidth, slot, bank } = layer;
  const { moe, prefix } = operation;
  const { used } = moe;
  const text = new KernelText()
    .bind(buffer(inner, 'read'), 'inner', 'vec4f')
    .bind(buffer(sorted.name, 'read'), 'sorted', 'u32')
    .bind(buffer(`${prefix}.made`, 'write'), 'made', 'f32');
  bank.bind(text);
  if (moe.biases) text.vector(`${prefix}.down.bias`, 'downBias');
  const down = text.matrix(bank.down);
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${hidden}u) { made[pair * ${hidden}u + row] = s${j}${moe.biases ? ` + downBias[expert * ${hidden}u + row]` : ''}; }
      }`;
  const code = tileKernel({
    text,
    height: HEIGHT,
    blocks: down.blocks,
    functions: `fn inputAt(row: u32, v: u32) -> vec4f { return inner[row + v]; }
fn slotOf(pair: u32) -> u32 { return (pair / ${used}u) * ${innerWidth / 4}u + (pair % ${used}u) * ${slot / 4}u; }`,
    start: `${sorted.tile}${bank.find}\n  let first = wg.x * ${TILE_ROWS}u;`,
    inputRow: `slotOf(sorted[${sorted.order}u + place + t])`,
    decode: (store) => store(down, `at * ${hidden}u + min(first + tid, ${hidden - 1}u)`),
    write: `      let pair = sorted[${sorted.order}u + place + t];\n${[0, 1, 2, 3].map(put).join('\n')}`,
  });
  const across = Math.ceil(hidden / TILE_ROWS);
  builder.dispatch('prompt', {
    label: `${prefix} down`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, sorted.tiles(run), 1],
  });
}

function emitSharedOut(layer: MoeLayer): void {
  const { operation, builder, hidden, inner, innerWidth, slot } = layer;
  const { moe, prefix } = operation;
  builder.declareBuffer(`${prefix}.sharedOut`, builder.rows * hidden * 4);
  emitTiled(builder, {
    label: `${prefix}.shared.down`,
    input: buffer(inner, 'read'),
    reader: {
      type: 'vec4f',
      code: `fn inputAt(row: u32, v: u32) -> vec4f { return x[row * ${innerWidth / 4}u + ${(moe.used * slot) / 4}u + v]; }`,
    },
    output: buffer(`${prefix}.sharedOut`, 'write'),
    outputWidth: hidden,
    weight: builder.weight(`${prefix}.shared.down`),
  });
}
