/** Experts of many rows on subgroup matrices: as `moe-prompt.ts`, in tiles as high as what an expert has of the run. */

import type { MoeOperation } from '../../../model/graph.ts';
import type { Builder, RunShape } from '../builder.ts';
import type { GpuRow } from '../row.ts';
import { emitHalf, type HalfLayout } from './half.ts';
import { KernelText } from './kernel-text.ts';
import { acceptsMatrix, matrixTolerance } from './matrix.ts';
import { denseTiles, emitMatrix, emitMatrixGated, gatedKernel, halfName, halvesOf } from './matrix-product.ts';
import { type MatrixTile, matrixKernel, raisedBy } from './matrix-tiles.ts';
import { acceptsLayer, emitMoe, servedOfExperts } from './moe.ts';
import { buffer, gateScale, type MoeLayer, value } from './moe-layer.ts';
import { emitCombine, emitSort, type Sorted } from './moe-sort.ts';

export const moeMatrixRows: readonly GpuRow[] = [
  {
    name: 'moe-prompt-matrix',
    device: 'gpu',
    operation: 'moe',
    modes: ['prompt'],
    tolerance: { ...matrixTolerance, reason: `${matrixTolerance.reason}, twice over; the router's are f32` },
    layout: 'planes',
    serves: servedOfExperts,
    accepts(request) {
      const { prefix } = request.operation as MoeOperation;
      const answer = acceptsLayer(request);
      if (answer !== true) return answer;
      const names = ['', '.shared'].flatMap((part) => ['gate', 'up', 'down'].map((kind) => `${prefix}${part}.${kind}`));
      return acceptsMatrix(
        request,
        names.filter((name) => request.weights[name] !== undefined),
      );
    },
    emit(operation, builder) {
      const normed = withNorm(operation as MoeOperation, builder);
      const { input } = operation as MoeOperation;
      emitMoe(normed, builder, { mode: 'prompt', input, experts: (layer) => emitMatrixExperts(layer) });
    },
  },
];

/** The operation on rows that are normed already: in f32 for the router, as halves for the experts, by one dispatch. */
function withNorm(operation: MoeOperation, builder: Builder): MoeOperation {
  const { input, norm, output } = operation;
  if (norm === undefined) return operation;
  const normed = `${output}.normed`;
  emitHalf(builder, {
    label: `${output} norm`,
    input: value(input, 'read'),
    columns: builder.width(input),
    norm,
    normed,
    output: halfName(normed),
  });
  return { ...operation, input: normed, norm: undefined };
}

/** The tiles of an expert's two products: of one height. */
export interface ExpertTiles {
  readonly in: MatrixTile;
  readonly out: MatrixTile;
}

/** By height; the least that holds what an expert has of a run on average, and half as much again, is taken. */
export const expertTiles: readonly ExpertTiles[] = [
  {
    in: { height: 64, rows: 128, across: 4, down: 1, turn: 1, ahead: 2 },
    out: { height: 64, rows: 128, across: 8, down: 1, turn: 1, ahead: 2 },
  },
  {
    in: { height: 144, rows: 128, across: 4, down: 3, turn: 2, ahead: 1 },
    out: { height: 144, rows: 128, across: 4, down: 3, turn: 2, ahead: 2 },
  },
];

/** How a run's pairs are cut, and the tiles that take them. */
interface Cut {
  readonly tiles: ExpertTiles;
  readonly sorted: Sorted;
}

/** The shape of an MoE layer's work. A device with subgroup matrices has at least 512 threads in a workgroup (`device.ts`). */
const shape = { experts: expertTiles, dense: denseTiles, sortThreads: 512 };

export function emitMatrixExperts(layer: MoeLayer, how = shape): void {
  const choices = how.experts;
  const { operation, builder, hidden, inner, innerWidth, slot, sharedSlot } = layer;
  const { moe, prefix, input } = operation;
  const { used, experts, shared } = moe;
  const halves = halvesOf(builder, input);
  builder.declareBuffer(`${prefix}.made`, builder.rows * used * hidden * 4);
  const chosen = ({ rows }: RunShape) => {
    const found = choices.findIndex(({ in: { height } }) => (1.5 * rows * used) / experts <= height);
    return found < 0 ? choices.length - 1 : found;
  };
  // Fewer rows never choose a later one.
  const last = chosen({ rows: builder.rows, wanted: 0, visible: 0 });
  const cuts = choices.slice(0, last + 1).map((own, index): Cut => {
    return {
      tiles: own,
      sorted: emitSort(layer, {
        height: own.in.height,
        serves: (run) => chosen(run) === index,
        threads: how.sortThreads,
      }),
    };
  });
  for (const cut of cuts) emitIn(layer, halves, cut);
  // The inner values of sorted pairs in their order, then those of the shared expert.
  const innerHalves = emitHalf(builder, {
    label: `${prefix} inner to f16`,
    input: buffer(inner, 'read'),
    columns: slot,
    each: used,
    output: `${prefix}.inner f16`,
  });
  for (const cut of cuts) emitOut(layer, innerHalves, cut);
  if (shared !== undefined) {
    const offset = builder.rows * (innerWidth - sharedSlot);
    builder.declareBuffer(`${prefix}.sharedOut`, builder.rows * hidden * 4);
    const gated = {
      label: `${prefix}.shared gate and up`,
      halves,
      gate: builder.weight(`${prefix}.shared.gate`),
      up: builder.weight(`${prefix}.shared.up`),
      activation: moe.activation,
      output: buffer(inner, 'write'),
      outputWidth: sharedSlot,
      outputOffset: offset,
    };
    emitMatrixGated(builder, gated, how.dense);
    const down = {
      label: `${prefix}.shared.down`,
      halves: emitHalf(builder, {
        label: `${prefix}.shared inner to f16`,
        input: buffer(inner, 'read'),
        inputOffset: offset,
        columns: sharedSlot,
        output: `${prefix}.shared.inner f16`,
      }),
      output: buffer(`${prefix}.sharedOut`, 'write'),
      outputWidth: hidden,
      weights: [{ weight: builder.weight(`${prefix}.shared.down`) }],
    };
    emitMatrix(builder, down, how.dense);
  }
  emitCombine(layer, 'prompt');
}

/** Gate and up of sorted pairs become one, in their order. */
function emitIn(layer: MoeLayer, halves: HalfLayout, { tiles, sorted }: Cut): void {
  const { operation, builder, route, routeWidth, inner, slot, bank } = layer;
  const { moe, prefix } = operation;
  const { used, biases, router } = moe;
  const tile = tiles.in;
  const text = new KernelText()
    .bind(buffer(halves.name, 'read'), 'inputs', 'vec4u')
    .bind(buffer(inner, 'write'), 'y', 'f32')
    .bind(buffer(sorted.name, 'read'), 'sorted', 'u32');
  bank.bind(text);
  if (biases) text.vector(`${prefix}.gate.bias`, 'gateBias').vector(`${prefix}.up.bias`, 'upBias');
  if (router.weighsInput) text.bind(buffer(route, 'read'), 'route', 'u32');
  const adjusted =
    (bias: string, scale = '') =>
    (product: string) => {
      const weighed = `${product}${scale}${router.weighsInput ? ' * weight' : ''}`;
      return biases ? `${weighed} + ${bias}[expert * ${moe.inner}u + min(row, ${moe.inner - 1}u)]` : weighed;
    };
  const weight = `          let pair = sorted[${sorted.order}u + place + t];
          let weight = bitcast<f32>(route[(pair / ${used}u) * ${routeWidth}u + ${used}u + pair % ${used}u]);`;
  const code = gatedKernel(
    { halves, gate: bank.gate, up: bank.up, activation: moe.activation },
    {
      text,
      tile,
      start: `${sorted.tile}${bank.find}`,
      base: `at * ${moe.inner}u`,
      inputRow: `sorted[${sorted.order}u + place + t] / ${moe.used}u`,
      place: `(place + t) * ${slot}u`,
      wide: slot,
      products: {
        before: router.weighsInput ? weight : '',
        gate: adjusted('gateBias', gateScale(layer, text, 'expert')),
        up: adjusted('upBias'),
      },
    },
  );
  builder.dispatch('prompt', {
    label: `${prefix} gate and up`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [Math.ceil(slot / (tile.rows / 2)), sorted.tiles(run), 1],
  });
}

/** down · inner of sorted pairs: [pairs, hidden] in the order of pairs. */
function emitOut({ operation, builder, hidden, bank }: MoeLayer, halves: HalfLayout, { tiles, sorted }: Cut): void {
  const { prefix, moe } = operation;
  const tile = tiles.out;
  const weight = bank.down;
  const text = new KernelText()
    .bind(buffer(halves.name, 'read'), 'inputs', 'vec4u')
    .bind(buffer(`${prefix}.made`, 'write'), 'made', 'f32')
    .bind(buffer(sorted.name, 'read'), 'sorted', 'u32');
  bank.bind(text);
  if (moe.biases) text.vector(`${prefix}.down.bias`, 'downBias');
  const bias = moe.biases ? ` + downBias[expert * ${hidden}u + first + r]` : '';
  const matrix = text.matrix(weight);
  const code = matrixKernel({
    text,
    tile,
    halves,
    start: `${sorted.tile}${bank.find}\n  let first = wg.x * ${tile.rows}u;`,
    inputRow: 'place + t',
    segments: [[{ weight, matrix, base: `at * ${hidden}u`, first: 'first' }]],
    write: `        if (first + r < ${hidden}u) {
          let pair = sorted[${sorted.order}u + place + t];
          made[pair * ${hidden}u + first + r] = s0 * ${1 / raisedBy(weight)} * scaleOf(place + t)${bias};
        }`,
  });
  builder.dispatch('prompt', {
    label: `${prefix} down`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [Math.ceil(hidden / tile.rows), sorted.tiles(run), 1],
  });
}
