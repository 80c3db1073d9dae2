/** Prompt products on subgroup matrices, in the shapes that operations ask for: side by side, gated, and their tiles. */

import type { RowNorm, ValueName } from '../../../model/graph.ts';
import type { Activation } from '../../../model/spec.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Binding, Builder, RunShape } from '../builder.ts';
import { gluCode } from './activation.ts';
import { emitHalf, type HalfLayout } from './half.ts';
import { KernelText, rowsOf } from './kernel-text.ts';
import { type MatrixTile, matrixKernel, raisedBy } from './matrix-tiles.ts';

/** The buffer that holds a value's halves. */
export function halfName(value: ValueName): string {
  return `${value} f16`;
}

/** Converts a value for products, once for all that read it. */
export function halvesOf(builder: Builder, value: ValueName, norm?: RowNorm): HalfLayout {
  const output = norm === undefined ? halfName(value) : `${halfName(value)} ${norm.weight}`;
  return emitHalf(builder, {
    label: `${value} to f16`,
    input: { kind: 'value', name: value, access: 'read' },
    columns: builder.width(value),
    norm,
    output,
  });
}

/**
 * By preference; one that makes too few workgroups leaves a large device idle, and the next is taken. These and those below
 * are what an H200 is fastest with.
 */
export const denseTiles: readonly MatrixTile[] = [
  { height: 128, rows: 128, across: 4, down: 2, turn: 2, ahead: 1 },
  { height: 64, rows: 64, across: 2, down: 2, turn: 2, ahead: 1 },
];

/** Of matrices side by side, between which a kernel chooses at each load. */
export const sideBySideTiles: readonly MatrixTile[] = [
  { height: 128, rows: 128, across: 4, down: 4, turn: 2, ahead: 1 },
  { height: 64, rows: 64, across: 2, down: 2, turn: 2, ahead: 1 },
];

/** Workgroups that keep a large device busy. */
const ENOUGH = 150;

/** Which of the tiles serves a run. */
function chosenTile(tiles: readonly MatrixTile[], groups: (tile: MatrixTile) => number, run: RunShape): number {
  const found = tiles.findIndex((tile) => groups(tile) * Math.ceil(run.rows / tile.height) >= ENOUGH);
  return found < 0 ? tiles.length - 1 : found;
}

/** Emits a dispatch for each tile that a run of this builder may choose; one of them serves a run. */
function emitTiles(
  builder: Builder,
  given: {
    readonly label: string;
    readonly tiles: readonly MatrixTile[];
    /** Workgroups along the weight rows. */
    readonly groups: (tile: MatrixTile) => number;
    readonly code: (tile: MatrixTile, text: KernelText) => string;
  },
): void {
  const { label, tiles, groups, code } = given;
  // More rows never choose a later tile.
  const first = chosenTile(tiles, groups, { rows: builder.rows, wanted: 0, visible: 0 });
  for (const [index, tile] of tiles.entries()) {
    if (index < first) continue;
    const text = new KernelText();
    builder.dispatch('prompt', {
      label,
      code: code(tile, text),
      bindings: text.bindings,
      workgroups: (run) =>
        chosenTile(tiles, groups, run) === index ? [groups(tile), Math.ceil(run.rows / tile.height), 1] : [0, 0, 0],
    });
  }
}

/** Statements that declare `top` and `count` of a tile of the run's rows. */
function runTile({ height }: MatrixTile, builder: Builder): string {
  return `
  let top = wg.y * ${height}u;
  if (top >= step[${builder.step.rows}u]) { return; }
  let count = min(step[${builder.step.rows}u] - top, ${height}u);`;
}

export interface MatrixProduct {
  readonly label: string;
  readonly halves: HalfLayout;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row; the weights' rows stand one after the other in it. */
  readonly outputWidth: number;
  /** Matrices of the same columns. */
  readonly weights: readonly { readonly weight: Weight; readonly bias?: string }[];
  /** A value of the output's width that is added. */
  readonly add?: ValueName;
}

/** The products of every row of a prompt run with matrices side by side, in one dispatch. */
export function emitMatrix(builder: Builder, product: MatrixProduct, own?: readonly MatrixTile[]): void {
  const { label, weights } = product;
  const tiles = own ?? (weights.length > 1 ? sideBySideTiles : denseTiles);
  emitTiles(builder, {
    label,
    tiles,
    groups: (tile) => weights.reduce((sum, { weight }) => sum + Math.ceil(rowsOf(weight) / tile.rows), 0),
    code: (tile, text) => productCode(builder, product, { tile, text }),
  });
}

function productCode(
  builder: Builder,
  product: MatrixProduct,
  { tile, text }: { readonly tile: MatrixTile; readonly text: KernelText },
): string {
  const { halves, output, outputWidth, weights, add } = product;
  text
    .bind({ kind: 'buffer', name: halves.name, access: 'read' }, 'inputs', 'vec4u')
    .bind(output, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  let group = 0;
  let column = 0;
  const segments = weights.map(({ weight, bias }, index) => {
    const matrix = text.matrix(weight);
    if (bias !== undefined) text.vector(bias, `bias${index}`);
    const segment = { weight, matrix, biased: bias !== undefined, group, column, rows: rowsOf(weight) };
    group += Math.ceil(segment.rows / tile.rows);
    column += segment.rows;
    return segment;
  });
  if (add !== undefined) text.bind({ kind: 'value', name: add, access: 'read' }, 'residual', 'f32');
  const start = segments
    .map(
      ({ group: from, column: at, rows, weight }, i) =>
        `  if (wg.x >= ${from}u) { segment = ${i}u; first = (wg.x - ${from}u) * ${tile.rows}u; most = ${rows}u; place = ${at}u; raised = ${1 / raisedBy(weight)}; }`,
    )
    .join('\n');
  const biases = segments
    .map(({ biased }, i) => (biased ? `          if (segment == ${i}u) { sum += bias${i}[row]; }` : ''))
    .filter((line) => line !== '')
    .join('\n');
  return matrixKernel({
    text,
    tile,
    halves,
    start: `${runTile(tile, builder)}
  var segment = 0u;
  var first = 0u;
  var most = 0u;
  var place = 0u;
  var raised = 1.0;
${start}`,
    inputRow: 'top + t',
    segments: segments.map(({ weight, matrix }) => [{ weight, matrix, base: '0u', first: 'first' }]),
    write: `        let row = first + r;
        if (row < most) {
          let at = (top + t) * ${outputWidth}u + place + row;
          var sum = s0 * raised * scaleOf(top + t);
${biases}
          y[at] = sum${add === undefined ? '' : ' + residual[at]'};
        }`,
  });
}

export interface MatrixGated {
  readonly label: string;
  readonly halves: HalfLayout;
  readonly gate: Weight;
  readonly up: Weight;
  readonly activation: Activation;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row, all of which are written: those beyond the matrices' rows are zero. */
  readonly outputWidth: number;
  /** f32 before the first row; 0 if it is not said. */
  readonly outputOffset?: number;
}

/** Gate and up of every row of a prompt run become one. */
export function emitMatrixGated(builder: Builder, gated: MatrixGated, tiles = denseTiles): void {
  const { label, halves, output, outputWidth, outputOffset = 0 } = gated;
  emitTiles(builder, {
    label,
    tiles,
    groups: (tile) => Math.ceil(outputWidth / (tile.rows / 2)),
    code: (tile, text) => {
      text
        .bind({ kind: 'buffer', name: halves.name, access: 'read' }, 'inputs', 'vec4u')
        .bind(output, 'y', 'f32')
        .bind({ kind: 'step' }, 'step', 'u32');
      return gatedKernel(gated, {
        text,
        tile,
        start: runTile(tile, builder),
        base: '0u',
        inputRow: 'top + t',
        place: `${outputOffset}u + (top + t) * ${outputWidth}u`,
        wide: outputWidth,
      });
    },
  });
}

/**
 * The module of a gated product into `y`: half of a tile's weight rows are the gate's.
 * @param given.base WGSL of the row of both stacks where their matrices begin
 * @param given.place WGSL of the first f32 of the output of run row `t`
 */
export function gatedKernel(
  { halves, gate, up, activation }: Pick<MatrixGated, 'halves' | 'gate' | 'up' | 'activation'>,
  given: {
    readonly text: KernelText;
    readonly tile: MatrixTile;
    readonly start: string;
    readonly base: string;
    readonly inputRow: string;
    readonly place: string;
    readonly wide: number;
    /** What is done to the products of the row `row` before they become one. */
    readonly products?: {
      readonly before: string;
      readonly gate: (product: string) => string;
      readonly up: (product: string) => string;
    };
  },
): string {
  const { text, tile, start, base, inputRow, place, wide, products } = given;
  const made = [gate, up].map((weight, i) => `s${i} * ${1 / raisedBy(weight)} * scale`) as [string, string];
  const half = tile.rows / 2;
  const parts = [gate, up].map((weight) => ({ weight, matrix: text.matrix(weight), base, first: 'first' }));
  return matrixKernel({
    text,
    tile,
    halves,
    functions: gluCode(activation),
    start: `${start}\n  let first = wg.x * ${half}u;`,
    inputRow,
    segments: [parts],
    write: `        let row = first + r;
        if (row < ${wide}u) {
          let scale = scaleOf(${inputRow});
${products?.before ?? ''}
          let value = glu(${products?.gate(made[0]) ?? made[0]}, ${products?.up(made[1]) ?? made[1]});
          y[${place} + row] = select(0.0, value, row < ${rowsOf(gate)}u);
        }`,
  });
}
