/**
 * A product for each head. A workgroup takes some rows of one head's matrix and up to four rows of the run: a thread decodes a
 * block of 32 columns once and multiplies it with its part of each row; blocks are summed in order. So a row's sum does not
 * depend on the rows beside it.
 */

import type { HeadLinearOperation } from '../../../model/graph.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { acceptsWeight } from '../formats/index.ts';
import type { GpuRow } from '../row.ts';
import { KernelText, unrolled } from './kernel-text.ts';
import { f32Encoding } from './lane-product.ts';
import { MAX_WORKGROUPS } from './snippets.ts';

const THREADS = 256;
/** Rows of the run that a workgroup takes; with the widest heads their inputs and sums fill 12 of the 16 KiB that there are. */
const RUN_ROWS = 4;
const MOST_COLUMNS = 512;

/** Rows of a head's matrix that a workgroup takes, a thread for each of their blocks, and how many workgroups a head has. */
function tilesOf(rows: number, columns: number): { readonly across: number; readonly tiles: number } {
  const across = Math.min(Math.floor(THREADS / Math.ceil(columns / 32)), rows);
  return { across, tiles: Math.ceil(rows / across) };
}

function dispatchOf({ input, weight, output, heads, rest = 0 }: HeadLinearOperation, builder: Builder): Dispatch {
  const stack = builder.weight(weight);
  const [, rows, columns] = stack.shape as readonly [number, number, number];
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', 'f32')
    .bind({ kind: 'value', name: output, access: 'write' }, 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const matrix = text.matrix(stack);
  const { blocks } = matrix;
  const { across, tiles } = tilesOf(rows, columns);
  const wide = blocks * 32;
  const [inputHead, outputHead] = [columns + rest, rows + rest];
  const used = `step[${builder.step.rows}u]`;
  const carried = /* wgsl */ `
  if (wg.x % ${tiles}u == 0u) {
    for (var i = tid; i < ${RUN_ROWS * rest}u; i += ${THREADS}u) {
      let t = top + i / ${rest}u;
      let place = t * ${heads}u + head;
      if (t < ${used}) { y[place * ${outputHead}u + ${rows}u + i % ${rest}u] = x[place * ${inputHead}u + ${columns}u + i % ${rest}u]; }
    }
  }`;
  const code = text.code(/* wgsl */ `
var<workgroup> inputs: array<f32, ${RUN_ROWS * wide}>;
var<workgroup> sums: array<f32, ${RUN_ROWS * THREADS}>;

fn part(t: u32, block: u32, v: u32) -> vec4f {
  let at = t * ${wide}u + block * 32u + v * 4u;
  return vec4f(inputs[at], inputs[at + 1u], inputs[at + 2u], inputs[at + 3u]);
}

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let head = wg.x / ${tiles}u;
  let first = wg.x % ${tiles}u * ${across}u;
  let top = wg.y * ${RUN_ROWS}u;
  if (top >= ${used}) { return; }
  // Columns beyond the last are zero, as the matrix has them.
  for (var i = tid; i < ${RUN_ROWS * wide}u; i += ${THREADS}u) {
    let t = top + i / ${wide}u;
    let column = i % ${wide}u;
    var value = 0.0;
    if (t < ${used} && column < ${columns}u) { value = x[(t * ${heads}u + head) * ${inputHead}u + column]; }
    inputs[i] = value;
  }
  workgroupBarrier();
  let block = tid % ${blocks}u;
  let row = first + tid / ${blocks}u;
  if (tid < ${across * blocks}u && row < ${rows}u) {
    var values = ${matrix.decode}((head * ${rows}u + row) * ${matrix.rowWords}u, block);
${unrolled(
  RUN_ROWS,
  (t) => `    var sum${t} = vec4f();
${unrolled(8, (v) => `    sum${t} = fma(values[${v}], part(${t}u, block, ${v}u), sum${t});`)}
    sums[${t * THREADS}u + tid] = (sum${t}.x + sum${t}.y) + (sum${t}.z + sum${t}.w);`,
)}
  }
  workgroupBarrier();
  for (var i = tid; i < ${RUN_ROWS * across}u; i += ${THREADS}u) {
    let t = i / ${across}u;
    let own = i % ${across}u;
    if (top + t < ${used} && first + own < ${rows}u) {
      let start = t * ${THREADS}u + own * ${blocks}u;
      var sum = sums[start];
      for (var b = 1u; b < ${blocks}u; b++) { sum += sums[start + b]; }
      y[((top + t) * ${heads}u + head) * ${outputHead}u + first + own] = sum;
    }
  }${rest === 0 ? '' : carried}
}`);
  return {
    label: weight,
    code,
    bindings: text.bindings,
    workgroups: (run) => [heads * tiles, Math.ceil(run.rows / RUN_ROWS), 1],
  };
}

export const headLinearRows: readonly GpuRow[] = [
  {
    name: 'headLinear',
    device: 'gpu',
    operation: 'headLinear',
    modes: ['prompt', 'step'],
    tolerance: f32Encoding.tolerance,
    layout: 'planes',
    accepts(request) {
      const { weight } = request.operation as HeadLinearOperation;
      const { format, shape } = request.weights[weight] as { format: string; shape: readonly number[] };
      if (shape.length !== 3) return `needs a matrix a head, found [${shape.join(', ')}]`;
      const [heads, rows, columns] = shape as readonly [number, number, number];
      if (columns > MOST_COLUMNS) return `takes heads of up to ${MOST_COLUMNS} columns, found ${columns}`;
      const workgroups = heads * tilesOf(rows, columns).tiles;
      if (workgroups > MAX_WORKGROUPS) return `takes up to ${MAX_WORKGROUPS} workgroups, found ${workgroups}`;
      if (request.rows > MAX_WORKGROUPS) return `takes up to ${MAX_WORKGROUPS} rows a run, found ${request.rows}`;
      return acceptsWeight(weight, format, columns);
    },
    emit(made, builder, mode) {
      const operation = made as HeadLinearOperation;
      builder.declareValue(operation.output, builder.width(operation.output));
      builder.dispatch(mode, dispatchOf(operation, builder));
    },
  },
];
