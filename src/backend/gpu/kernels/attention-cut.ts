/**
 * How the context of a step row is cut into chunks that are attended to side by side, and how these are put together again
 * (the split of Flash-Decoding). The cut is a function of the row's own position, so the order of its sums does not depend
 * on its neighbours.
 */

import type { AttentionOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import { MAX_STEP_ROWS } from '../../kernel.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { type ReachCode, reachCode } from './attention-reach.ts';
import { type Bound, blockMax, blockSum, declare, f32Literal, LEAST, STEP, writeValue } from './snippets.ts';

/** Weighted values of every chunk, [MAX_STEP_ROWS][chunks][heads][valueDim], not yet divided by their sum. */
export const PARTS = 'attention parts';
/** Largest score, as a power of 2, and sum of weights of every chunk, [MAX_STEP_ROWS][heads][chunks][2]. */
export const SUMS = 'attention sums';

/** Chunks of a row at the most, and bytes that all may take before they get longer. */
const MOST_CHUNKS = 128;
const PART_BYTES = 2 ** 27;
/** Threads that put a row's chunks together, at least one a chunk; and what each has under way at a time. */
const COMBINE_THREADS = 256;
const LOADS = 4;

export interface Cut {
  /** Chunks of a row, at the most. */
  readonly chunks: number;
  /**
   * WGSL of `fn chunkLength(visible: u32) -> u32`: positions of a chunk of a row that sees so many, from the page of the first
   * of them on; whole pages.
   */
  readonly code: string;
  readonly reach: ReachCode;
  /** Chunks of any row that sees at most so many positions. */
  chunksOf(visible: number): number;
}

export function cutOf(operation: AttentionOperation, context: number): Cut {
  const { heads, valueDim } = operation;
  const reach = reachCode(operation);
  const each = MAX_STEP_ROWS * heads * valueDim * 4;
  const most = Math.min(MOST_CHUNKS, Math.max(8, Math.floor(PART_BYTES / each)));
  const longest = PAGE_ROWS * most;
  const chunksOf = (visible: number) => Math.min(most, Math.ceil(visible / PAGE_ROWS));
  return {
    chunks: chunksOf(context),
    chunksOf,
    reach,
    code: `${reach.functions}
fn chunkLength(visible: u32) -> u32 { return (visible + ${longest - 1}u) / ${longest}u * ${PAGE_ROWS}u; }`,
  };
}

export function declareParts({ heads, valueDim }: AttentionOperation, builder: Builder, { chunks }: Cut): void {
  builder.declareBuffer(PARTS, MAX_STEP_ROWS * chunks * heads * valueDim * 4);
  builder.declareBuffer(SUMS, MAX_STEP_ROWS * chunks * heads * 8);
}

/** WGSL that weighs a row's chunks: `weights` of each, and `all`, the sum of all weights. */
interface Weighing {
  readonly functions: string;
  /** Reads that wait for nothing. */
  readonly loads: string;
  /** Takes back what of them is beyond the last chunk. */
  readonly keep: string;
  readonly weights: string;
}

/** A sink is a score more, of no value: scores are powers of 2. */
const SINK = `  let sink = sinks[head] * ${f32Literal(Math.LOG2E)};`;

/** A thread a chunk: there are never more. */
function blockWeighing(heads: number, chunks: number, sinks: boolean): Weighing {
  return {
    functions: `${blockMax(COMBINE_THREADS, LEAST)}\n${blockSum(COMBINE_THREADS)}`,
    loads: `  var own = vec2f();
  if (thread < ${chunks}u) { own = sums[(row * ${heads}u + head) * ${chunks}u + thread]; }`,
    keep: `  if (thread >= count) { own = vec2f(${LEAST}, 0f); }`,
    weights: `${sinks ? SINK : ''}
  let top = ${sinks ? 'max(blockMax(thread, own.x), sink)' : 'blockMax(thread, own.x)'};
  let weight = select(0f, exp2(own.x - top), thread < count);
  weights[thread] = weight;
  let all = blockSum(thread, weight * own.y)${sinks ? ' + exp2(sink - top)' : ''};`,
  };
}

/** Each subgroup, of 32 lanes, weighs all chunks by itself: there is one barrier in place of six. */
function subgroupWeighing(heads: number, chunks: number, sinks: boolean): Weighing {
  const own = Array.from({ length: Math.ceil(chunks / 32) }, (_, i) => i);
  const masks = [16, 8, 4, 2, 1];
  return {
    functions: '',
    loads: own
      .map(
        (i) => `  var own${i} = vec2f();
  if (lane + ${i * 32}u < ${chunks}u) { own${i} = sums[(row * ${heads}u + head) * ${chunks}u + lane + ${i * 32}u]; }`,
      )
      .join('\n'),
    keep: own.map((i) => `  if (lane + ${i * 32}u >= count) { own${i} = vec2f(${LEAST}, 0f); }`).join('\n'),
    weights: `  var top = ${LEAST};
${own.map((i) => `  top = max(top, own${i}.x);`).join('\n')}
${masks.map((mask) => `  top = max(top, subgroupShuffleXor(top, ${mask}u));`).join('\n')}
${sinks ? `${SINK}\n  top = max(top, sink);` : ''}
  var all = 0f;
${own
  .map(
    (i) => `  let weight${i} = exp2(own${i}.x - top);
  all = fma(weight${i}, own${i}.y, all);
  if (thread < 32u) { weights[lane + ${i * 32}u] = weight${i}; }`,
  )
  .join('\n')}
${masks.map((mask) => `  all += subgroupShuffleXor(all, ${mask}u);`).join('\n')}
${sinks ? '  all += exp2(sink - top);' : ''}
  workgroupBarrier();`,
  };
}

/** A workgroup takes one query head of a row: it weighs the row's chunks by their largest scores and adds them up. */
export function combineDispatch(
  operation: AttentionOperation,
  builder: Builder,
  { cut: { chunks, code, reach }, subgroups = false }: { readonly cut: Cut; readonly subgroups?: boolean },
): Dispatch {
  const { layer, output, heads, valueDim, sinks } = operation;
  const valueFours = valueDim / 4;
  const slices = powerOfTwoUpTo(Math.min(16, COMBINE_THREADS / valueFours));
  const load = (i: number) =>
    `part${i} = parts[((row * ${chunks}u + chunk + ${i * slices}u) * ${heads}u + head) * ${valueFours}u + four];`;
  const each = (line: (i: number) => string) => Array.from({ length: LOADS }, (_, i) => line(i)).join('\n');
  const { text, bindings } = declare([
    [{ kind: 'buffer', name: PARTS, access: 'read' }, 'parts', 'vec4f'],
    [{ kind: 'buffer', name: SUMS, access: 'read' }, 'sums', 'vec2f'],
    [writeValue(output), 'output', 'vec4f'],
    STEP,
    ...(sinks === undefined ? [] : [[{ kind: 'weight', name: sinks }, 'sinks', 'f32'] satisfies Bound]),
  ]);
  const at = builder.step;
  const weigh = subgroups ? subgroupWeighing : blockWeighing;
  const weighing = weigh(heads, chunks, sinks !== undefined);
  return {
    label: `layers.${layer}.attention combine`,
    bindings,
    code: `${subgroups ? 'enable subgroups;\n' : ''}${text}
${code}
${weighing.functions}
var<workgroup> weights: array<f32, ${COMBINE_THREADS}>;
var<workgroup> mixed: array<vec4f, ${COMBINE_THREADS}>;

@compute @workgroup_size(${COMBINE_THREADS})
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,${subgroups ? '\n  @builtin(subgroup_invocation_id) invocation: u32,' : ''}
) {${subgroups ? '\n  let lane = invocation % 32u;' : ''}
  let row = workgroup.y;
  let head = workgroup.x;
  let visible = step[${at.positions}u + row] + 1u;
  // Some loads at a time, the first before it is known how many chunks there are; those beyond the last are taken back.
${weighing.loads}
  let slice = thread / ${valueFours}u;
  let four = thread % ${valueFours}u;
  var chunk = select(${chunks}u, slice, slice < ${slices}u);
${each((i) => `  var part${i} = vec4f();`)}
${each((i) => `  if (chunk + ${i * slices}u < ${chunks}u) { ${load(i)} }`)}
  let seen = visible - ${reach.firstPage('visible')};
  let length = chunkLength(seen);
  let count = (seen + length - 1u) / length;
${weighing.keep}
${each((i) => `  if (chunk + ${i * slices}u >= count) { part${i} = vec4f(); }`)}
${weighing.weights}

  var sum = vec4f();
  while (chunk < count) {
${each((i) => `    sum = fma(vec4f(weights[${i === 0 ? 'chunk' : `min(chunk + ${i * slices}u, count - 1u)`}]), part${i}, sum);`)}
    chunk += ${LOADS * slices}u;
${each((i) => `    part${i} = vec4f();\n    if (chunk + ${i * slices}u < count) { ${load(i)} }`)}
  }
  mixed[thread] = sum;
  workgroupBarrier();
  if (thread < ${valueFours}u) {
    for (var s = 1u; s < ${slices}u; s++) { sum += mixed[thread + s * ${valueFours}u]; }
    output[(row * ${heads}u + head) * ${valueFours}u + thread] = sum / all;
  }
}
`,
    workgroups: ({ rows }) => [heads, rows, 1],
  };
}

const powerOfTwoUpTo = (x: number) => 2 ** Math.floor(Math.log2(x));
