/**
 * Experts of many rows: (row, rank) pairs are sorted by expert on the device, the tiles of each expert are multiplied, and
 * each row's results are summed in rank order. Where a pair stands among its expert's changes no bit of what is made of it.
 */

import { columnsOf, KernelText, rowReader } from './kernel-text.ts';
import { emitTiled } from './linear.ts';
import { buffer, type MoeLayer, sigmoidCode, value } from './moe-layer.ts';
import { emitTiledGated } from './tiled-gated.ts';
import { TILE_ROWS, tileKernel } from './tiles.ts';

/** Pairs of a tile: an expert has a few dozen of a usual batch. */
const HEIGHT = 32;

/**
 * The sorted pairs, u32: how many tiles there are, three unused; (expert, first place, count) of each tile; the pair
 * row · used + rank at each place.
 */
interface Sorted {
  readonly name: string;
  readonly order: number;
}

const TILES = 4;

/** Whole tiles, and a last one of each expert that is not. */
function mostTiles(pairs: number, experts: number): number {
  return Math.floor(pairs / HEIGHT) + Math.min(experts, pairs);
}

export function emitPromptExperts(layer: MoeLayer): void {
  const { operation, builder, hidden } = layer;
  const { moe, prefix } = operation;
  const pairs = builder.rows * moe.used;
  const sorted: Sorted = { name: `${prefix}.sorted`, order: TILES + 3 * mostTiles(pairs, moe.experts) };
  builder.declareBuffer(sorted.name, (sorted.order + pairs) * 4);
  builder.declareBuffer(`${prefix}.made`, pairs * hidden * 4);
  emitSort(layer, sorted);
  emitIn(layer, sorted);
  if (moe.shared !== undefined) emitSharedIn(layer);
  emitOut(layer, sorted);
  if (moe.shared !== undefined) emitSharedOut(layer);
  emitCombine(layer);
}

function emitSort({ operation, builder, route, routeWidth }: MoeLayer, { name, order }: Sorted): void {
  const { experts, used } = operation.moe;
  const text = new KernelText()
    .bind(buffer(route, 'read'), 'route', 'u32')
    .bind(buffer(name, 'write'), 'sorted', 'u32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const code = text.code(/* wgsl */ `
var<workgroup> counts: array<atomic<u32>, ${experts}>;

fn expertOf(pair: u32) -> u32 {
  return min(route[(pair / ${used}u) * ${routeWidth}u + pair % ${used}u], ${experts - 1}u);
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) tid: u32) {
  let pairs = min(step[${builder.step.rows}u], ${builder.rows}u) * ${used}u;
  for (var pair = tid; pair < pairs; pair += 256u) { atomicAdd(&counts[expertOf(pair)], 1u); }
  workgroupBarrier();
  if (tid == 0u) {
    var place = 0u;
    var tiles = 0u;
    for (var e = 0u; e < ${experts}u; e++) {
      let count = atomicLoad(&counts[e]);
      atomicStore(&counts[e], place);
      for (var done = 0u; done < count; done += ${HEIGHT}u) {
        let at = ${TILES}u + 3u * tiles;
        sorted[at] = e;
        sorted[at + 1u] = place + done;
        sorted[at + 2u] = min(count - done, ${HEIGHT}u);
        tiles++;
      }
      place += count;
    }
    sorted[0] = tiles;
  }
  workgroupBarrier();
  for (var pair = tid; pair < pairs; pair += 256u) {
    sorted[${order}u + atomicAdd(&counts[expertOf(pair)], 1u)] = pair;
  }
}`);
  builder.dispatch('prompt', {
    label: `${operation.prefix} sort`,
    code,
    bindings: text.bindings,
    workgroups: () => [1, 1, 1],
  });
}

/** Declares a tile of sorted pairs, or leaves when there is none. */
const sortedTile = /* wgsl */ `
  if (wg.y >= sorted[0]) { return; }
  let expert = sorted[${TILES}u + 3u * wg.y];
  let place = sorted[${TILES + 1}u + 3u * wg.y];
  let count = min(sorted[${TILES + 2}u + 3u * wg.y], ${HEIGHT}u);`;

/** silu(gate · x) ⊙ (up · x) of sorted pairs: 32 rows of each matrix a tile. */
function emitIn(layer: MoeLayer, sorted: Sorted): void {
  const { operation, builder, inner, innerWidth, slot } = layer;
  const { moe, prefix, input } = operation;
  const { used } = moe;
  const rows = moe.inner;
  const gateWeight = builder.weight(`${prefix}.gate`);
  const reader = rowReader(columnsOf(gateWeight));
  const text = new KernelText()
    .bind(value(input, 'read'), 'x', reader.type)
    .bind(buffer(inner, 'write'), 'inner', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32')
    .bind(buffer(sorted.name, 'read'), 'sorted', 'u32');
  const gate = text.matrix(gateWeight);
  const up = text.matrix(builder.weight(`${prefix}.up`));
  const half = TILE_ROWS / 2;
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${slot}u) { inner[out + row] = select(0.0, silu(s${j}) * s${j + 2}, row < ${rows}u); }
      }`;
  const code = tileKernel({
    text,
    height: HEIGHT,
    blocks: gate.blocks,
    functions: reader.code + sigmoidCode,
    start: `${sortedTile}\n  let first = wg.x * ${half}u;`,
    inputRow: `sorted[${sorted.order}u + place + t] / ${used}u`,
    decode: (store) => `
      if (tid < ${half}u) {${store(gate, `expert * ${rows}u + min(first + tid, ${rows - 1}u)`)}
      } else {${store(up, `expert * ${rows}u + min(first + tid - ${half}u, ${rows - 1}u)`)}
      }`,
    write: `      let pair = sorted[${sorted.order}u + place + t];
      let out = (pair / ${used}u) * ${innerWidth}u + (pair % ${used}u) * ${slot}u;
${put(0)}
${put(1)}`,
  });
  const across = slot / half;
  builder.dispatch('prompt', {
    label: `${prefix} gate and up`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, mostTiles(run.rows * used, moe.experts), 1],
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
    output: buffer(inner, 'write'),
    outputWidth: innerWidth,
    outputOffset: moe.used * slot,
    wide: sharedSlot,
  });
}

/** down · inner of sorted pairs: [pairs, hidden] in the order of pairs. */
function emitOut(layer: MoeLayer, sorted: Sorted): void {
  const { operation, builder, hidden, inner, innerWidth, slot } = layer;
  const { moe, prefix } = operation;
  const { used } = moe;
  const text = new KernelText()
    .bind(buffer(inner, 'read'), 'inner', 'vec4f')
    .bind(buffer(sorted.name, 'read'), 'sorted', 'u32')
    .bind(buffer(`${prefix}.made`, 'write'), 'made', 'f32');
  const down = text.matrix(builder.weight(`${prefix}.down`));
  const put = (j: number) => `      {
        let row = first + tx + ${16 * j}u;
        if (row < ${hidden}u) { made[pair * ${hidden}u + row] = s${j}; }
      }`;
  const code = tileKernel({
    text,
    height: HEIGHT,
    blocks: down.blocks,
    functions: `fn inputAt(row: u32, v: u32) -> vec4f { return inner[row + v]; }
fn slotOf(pair: u32) -> u32 { return (pair / ${used}u) * ${innerWidth / 4}u + (pair % ${used}u) * ${slot / 4}u; }`,
    start: `${sortedTile}\n  let first = wg.x * ${TILE_ROWS}u;`,
    inputRow: `slotOf(sorted[${sorted.order}u + place + t])`,
    decode: (store) => store(down, `expert * ${hidden}u + min(first + tid, ${hidden - 1}u)`),
    write: `      let pair = sorted[${sorted.order}u + place + t];\n${[0, 1, 2, 3].map(put).join('\n')}`,
  });
  const across = Math.ceil(hidden / TILE_ROWS);
  builder.dispatch('prompt', {
    label: `${prefix} down`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, mostTiles(run.rows * used, moe.experts), 1],
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

function emitCombine({ operation, builder, hidden, route, routeWidth }: MoeLayer): void {
  const { moe, prefix, output, add } = operation;
  const { used, shared } = moe;
  const text = new KernelText()
    .bind(buffer(`${prefix}.made`, 'read'), 'made', 'f32')
    .bind(buffer(route, 'read'), 'route', 'u32')
    .bind(value(output, 'write'), 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  if (shared !== undefined) text.bind(buffer(`${prefix}.sharedOut`, 'read'), 'sharedOut', 'f32');
  if (add !== undefined) text.bind(value(add, 'read'), 'residual', 'f32');
  const code = text.code(/* wgsl */ `
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.y;
  let i = wg.x * 256u + tid;
  if (t >= step[${builder.step.rows}u] || i >= ${hidden}u) { return; }
  var sum = 0.0;
  for (var rank = 0u; rank < ${used}u; rank++) {
    sum += bitcast<f32>(route[t * ${routeWidth}u + ${used}u + rank]) * made[(t * ${used}u + rank) * ${hidden}u + i];
  }
  ${shared === undefined ? '' : `sum += bitcast<f32>(route[t * ${routeWidth}u + ${2 * used}u]) * sharedOut[t * ${hidden}u + i];`}
  y[t * ${hidden}u + i] = sum${add === undefined ? '' : ` + residual[t * ${hidden}u + i]`};
}`);
  builder.dispatch('prompt', {
    label: `${prefix} sum`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [Math.ceil(hidden / 256), run.rows, 1],
  });
}
