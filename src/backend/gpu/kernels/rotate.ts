/**
 * What lies between the projections of a layer and its attention: queries and keys are normed and rotated, and keys and
 * values go to the cache (`attention-cache.ts`). Step rows' attention may do that itself (`attention-step-matrix.ts`).
 */

import type { RotateOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import type { CacheType, Mode } from '../../kernel.ts';
import type { Builder, Dispatch, RunShape } from '../builder.ts';
import type { GpuRow } from '../row.ts';
import { attentionTolerances, headsAccepted } from './attention.ts';
import { encodeFour, fourOf } from './attention-cache.ts';
import { headBindings, headLanes, LANE_ELEMENTS, partnerMask, turnsByLanes } from './head-lanes.ts';
import { treeSum } from './kernel-text.ts';
import { type Bound, blockSum, declare, f32Literal, MAX_WORKGROUPS, readValue, STEP, writeValue } from './snippets.ts';

const THREADS = 64;
/** A head lies in workgroup memory, and its norm's weights beside it. */
const MOST_WIDTHS = { headDim: 256, valueDim: 256 };

type Turning = Omit<Dispatch, 'workgroups'> & { readonly across: number };

/** A thread has eight elements of a query or a key; then come workgroups of values, of which a thread has four elements. */
function laneKernel(operation: RotateOperation, builder: Builder): Turning {
  const { layer, input, output, queryNorm, keyNorm, heads, kvHeads, headDim, valueDim } = operation;
  const type = builder.cacheType;
  const rowFours = builder.width(input) / 4;
  const lanes = headDim / LANE_ELEMENTS;
  const turned = heads + kvHeads;
  const turnGroups = Math.ceil((turned * lanes) / THREADS);
  const values = (kvHeads * valueDim) / 4;
  const mask = partnerMask(operation);
  const normed = queryNorm !== undefined || keyNorm !== undefined;
  const { text, bindings } = declare([
    [readValue(input), 'input', 'vec4f'],
    [writeValue(output), 'output', 'vec4f'],
    [{ kind: 'cache', layer, part: 'keys', access: 'write' }, 'keys', fourOf(type)],
    [{ kind: 'cache', layer, part: 'values', access: 'write' }, 'values', fourOf(type)],
    STEP,
    ...headBindings(operation),
  ]);
  const { rows, positions, pageStarts, pages } = builder.step;
  const place = (head: string, fours: number, four: string) =>
    `((page * ${kvHeads}u + ${head}) * ${PAGE_ROWS}u + position % ${PAGE_ROWS}u) * ${fours}u + ${four}`;
  return {
    label: `layers.${layer}.attention rotate and store`,
    bindings,
    code: `${text}
${encodeFour(type)}
${headLanes(operation)}
var<workgroup> squares: array<f32, ${THREADS}>;
var<workgroup> lows: array<vec4f, ${THREADS}>;
var<workgroup> highs: array<vec4f, ${THREADS}>;

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) tid: u32) {
  let row = workgroup.y;
  if (row >= step[${rows}]) { return; }
  let position = step[${positions}u + row];
  let page = step[${pages}u + step[${pageStarts}u + row] + position / ${PAGE_ROWS}u];
  let rowStart = row * ${rowFours}u;
  if (workgroup.x >= ${turnGroups}u) {
    let i = (workgroup.x - ${turnGroups}u) * ${THREADS}u + tid;
    if (i < ${values}u) {
      values[${place(`i / ${valueDim / 4}u`, valueDim / 4, `i % ${valueDim / 4}u`)}] = encode(input[rowStart + ${(turned * headDim) / 4}u + i]);
    }
    return;
  }
  // Query heads, then key heads; beyond the last it is taken again, and nobody keeps what comes of it.
  let slot = workgroup.x * ${THREADS / lanes}u + tid / ${lanes}u;
  let lane = tid % ${lanes}u;
  let at = rowStart + min(slot, ${turned - 1}u) * ${headDim / 4}u + 2u * lane;
  var x = HeadPart(input[at], input[at + 1u]);
${
  normed
    ? `  squares[tid] = squaresOf(x);
  workgroupBarrier();
  let first = tid - lane;
  let sum = ${treeSum(Array.from({ length: lanes }, (_, i) => `squares[first + ${i}u]`))};
  if (slot < ${heads}u) { x = queryNormed(x, sum, queryNormAt(lane)); } else { x = keyNormed(x, sum, keyNormAt(lane)); }`
    : ''
}
  lows[tid] = x.low;
  highs[tid] = x.high;
  workgroupBarrier();
  let made = turned(x, HeadPart(lows[tid ^ ${mask}u], highs[tid ^ ${mask}u]), anglesAt(lane, position), lane);
  if (slot < ${heads}u) {
    let home = (row * ${heads}u + slot) * ${headDim / 4}u + 2u * lane;
    output[home] = made.low;
    output[home + 1u] = made.high;
  } else if (slot < ${turned}u) {
    let home = ${place(`(slot - ${heads}u)`, headDim / 4, '2u * lane')};
    keys[home] = encode(made.low);
    keys[home + 1u] = encode(made.high);
  }
}
`,
    across: turnGroups + Math.ceil(values / THREADS),
  };
}

/** A workgroup a head. */
function headKernel(operation: RotateOperation, builder: Builder): Turning {
  const { layer, input, output, queryNorm, keyNorm, rope, heads, kvHeads, headDim, valueDim } = operation;
  const type = builder.cacheType;
  const width = builder.width(input);
  const queries = heads * headDim;
  const keys = kvHeads * headDim;
  const bound: Bound[] = [
    [readValue(input), 'input', 'f32'],
    [writeValue(output), 'output', 'vec4f'],
    [{ kind: 'cache', layer, part: 'keys', access: 'write' }, 'keys', fourOf(type)],
    [{ kind: 'cache', layer, part: 'values', access: 'write' }, 'values', fourOf(type)],
    STEP,
  ];
  if (rope !== undefined) bound.push([{ kind: 'rope', rope }, 'table', 'f32']);
  if (queryNorm !== undefined) bound.push([{ kind: 'weight', name: queryNorm.weight }, 'queryNorm', 'f32']);
  if (keyNorm !== undefined) bound.push([{ kind: 'weight', name: keyNorm.weight }, 'keyNorm', 'f32']);
  const { text, bindings } = declare(bound);
  const { rows, positions, pageStarts, pages } = builder.step;

  /** The factor and the weights of a head's norm: over its own elements, or over all heads of its kind. */
  const normOf = (norm: RotateOperation['queryNorm'], name: string, first: number, ownHead: string) => {
    if (norm === undefined) return '';
    const { group, epsilon } = norm;
    const whole = group > headDim;
    const from = whole ? `row * ${width}u + ${first}u` : 'start';
    return `
    origin = ${from};
    count = ${group}u;
    epsilon = ${f32Literal(epsilon)};
    let ownWeight = ${whole ? `(${ownHead}) * ${headDim}u` : '0u'};
    for (var d = tid; d < ${headDim}u; d += ${THREADS}u) { weights[d] = ${name}[ownWeight + d]; }`;
  };
  const normed = queryNorm !== undefined || keyNorm !== undefined;
  const both = queryNorm !== undefined && keyNorm !== undefined;
  const pairs = (rope?.dimensions ?? 0) / 2;
  const half = rope?.pairing === 'half';
  // [context][2][pairs]: cosines, then sines.
  const turned =
    rope === undefined
      ? 'return head[d];'
      : `let x = head[d];
  if (d >= ${rope.dimensions}u) { return x; }
  let second = ${half ? `d >= ${pairs}u` : '(d & 1u) == 1u'};
  let pair = ${half ? `select(d, d - ${pairs}u, second)` : 'd >> 1u'};
  let partner = head[select(d + ${half ? pairs : 1}u, d - ${half ? pairs : 1}u, second)];
  let angle = position * ${2 * pairs}u + pair;
  return fma(x, table[angle], select(-partner, partner, second) * table[angle + ${pairs}u]);`;
  const place = (head: string, fours: number) =>
    `((page * ${kvHeads}u + (${head})) * ${PAGE_ROWS}u + position % ${PAGE_ROWS}u) * ${fours}u + four`;
  const keyFours = headDim / 4;
  const valueFours = valueDim / 4;
  return {
    label: `layers.${layer}.attention rotate and store`,
    bindings,
    code: `${text}
${encodeFour(type)}
${normed ? blockSum(THREADS) : ''}
var<workgroup> head: array<f32, ${headDim}>;
${normed ? `var<workgroup> weights: array<f32, ${headDim}>;` : ''}

fn turned(d: u32, position: u32) -> f32 {
  ${turned}
}

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) tid: u32) {
  let row = workgroup.y;
  if (row >= step[${rows}]) { return; }
  // Query heads, then key heads, then value heads.
  let slot = workgroup.x;
  let position = step[${positions}u + row];
  let page = step[${pages}u + step[${pageStarts}u + row] + position / ${PAGE_ROWS}u];
  if (slot >= ${heads + kvHeads}u) {
    let own = slot - ${heads + kvHeads}u;
    let start = row * ${width}u + ${queries + keys}u + own * ${valueDim}u;
    for (var four = tid; four < ${valueFours}u; four += ${THREADS}u) {
      let i = start + 4u * four;
      values[${place('own', valueFours)}] = encode(vec4f(input[i], input[i + 1u], input[i + 2u], input[i + 3u]));
    }
    return;
  }
  let start = row * ${width}u + slot * ${headDim}u;
${
  normed
    ? `  var origin = start;
  var count = 0u;
  var epsilon = 0f;
  if (slot < ${heads}u) {${normOf(queryNorm, 'queryNorm', 0, 'slot')}
  } else {${normOf(keyNorm, 'keyNorm', queries, `slot - ${heads}u`)}
  }
  var squares = 0f;
  for (var i = tid; i < count; i += ${THREADS}u) {
    let x = input[origin + i];
    squares = fma(x, x, squares);
  }
  let sum = blockSum(tid, squares);
  let factor = inverseSqrt(sum / f32(max(count, 1u)) + epsilon);`
    : ''
}
  for (var d = tid; d < ${headDim}u; d += ${THREADS}u) {
    let x = input[start + d];
    head[d] = ${normed ? (both ? 'x * factor * weights[d]' : 'select(x, x * factor * weights[d], count > 0u)') : 'x'};
  }
  workgroupBarrier();
  for (var four = tid; four < ${keyFours}u; four += ${THREADS}u) {
    let d = 4u * four;
    let made = vec4f(turned(d, position), turned(d + 1u, position), turned(d + 2u, position), turned(d + 3u, position));
    if (slot < ${heads}u) {
      output[(row * ${heads}u + slot) * ${keyFours}u + four] = made;
    } else {
      keys[${place(`slot - ${heads}u`, keyFours)}] = encode(made);
    }
  }
}
`,
    across: heads + 2 * kvHeads,
  };
}

function rotateDispatch(operation: RotateOperation, builder: Builder, mode: Mode): Dispatch {
  const { across, ...dispatch } = (turnsByLanes(operation) ? laneKernel : headKernel)(operation, builder);
  const workgroups = (run: RunShape) =>
    builder.leavesOut(mode, operation.output, run) ? ([0, 0, 0] as const) : ([across, run.rows, 1] as const);
  return { ...dispatch, workgroups };
}

/** A row for each kind of cache. */
export const rotateRows: readonly GpuRow[] = (['f16', 'f32'] as const).map(
  (cache: CacheType): GpuRow => ({
    name: `rotate-${cache}`,
    device: 'gpu',
    operation: 'rotate',
    modes: ['prompt', 'step'],
    tolerance: attentionTolerances[cache],
    accepts(request) {
      if (request.cache !== cache) return `keeps a cache of ${cache}, found ${request.cache}`;
      if (request.rows > MAX_WORKGROUPS) return `takes up to ${MAX_WORKGROUPS} rows a run, found ${request.rows}`;
      return headsAccepted(request.operation as RotateOperation, MOST_WIDTHS);
    },
    emit(made, builder, mode) {
      const operation = made as RotateOperation;
      builder.declareValue(operation.output, builder.width(operation.output));
      builder.dispatch(mode, rotateDispatch(operation, builder, mode));
    },
  }),
);
